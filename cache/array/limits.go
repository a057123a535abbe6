package array

// The packages that handle batch numbers share these limits: sampler, fs, fs/state and
// cmd/batchfs/dataset. They are here because this is the only package that all of these import.

// MaxBatches is one more than the largest batch number.
const MaxBatches = 1 << 40

// MaxLag is how many batches a thread may be behind another if both count as one reader that reads
// in order.
const MaxLag = 64
