package config

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"batchfs/cache/array"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
	"batchfs/sampler"
)

// A table describes one table of config.toml, with its keys in the order of that file.
type table struct {
	name string // header in config.toml, such as [batch]
	help string // explanation in config.toml; lines are wrapped there
	keys []key
}

// A key describes one key of a table. Messages, config.toml, settings in paths, identities, saved
// states and restart depend on it.
type key struct {
	name    string
	effect  Effect
	initial any  // default; nil if there is none
	example any  // value in config.toml of a key without a default
	inPath  bool // whether a path may set the key, as in train/rank=3,world=8
	isFile  bool // whether the value is a path, relative to the file that contains it
	// advanced marks the key in config.toml as one that hardly anyone has to set.
	advanced bool
	valueType
	help string // explanation in config.toml; the rule of valueType follows it there
}

// An Effect is what a key decides. The settings that identify a sequence or a run, and those that a
// restart cannot change, are found by their effects.
type Effect int

const (
	_ Effect = iota // invalid, so that no key lacks an effect

	OnNothing  // speed, limits and checks, but no batch; a restart may change it
	OnMount    // the mount itself, and where next begins
	OnSizes    // the sizes of files
	OnReading  // which token files are read, and how
	OnSchedule // the source of each row; a restart may change it from the first unread row on
	OnRows     // the rows of a run: their order, and what each one holds
	OnBytes    // which rows of a run a batch has, and how it stores them
)

func (t *table) find(name string) *key {
	if i := slices.IndexFunc(t.keys, func(k key) bool { return k.name == name }); i >= 0 {
		return &t.keys[i]
	}
	return nil
}

func (t *table) setDefaults(c any) {
	for _, k := range t.keys {
		switch v := k.initial.(type) {
		case nil:
		case int:
			k.set(c, int64(v))
		default:
			k.set(c, v)
		}
	}
}

// KeysOn returns the keys of a split with one of these effects.
func KeysOn(effects ...Effect) (names []string) {
	for _, t := range []*table{&batchTable, &splitTable} {
		for _, k := range t.keys {
			if slices.Contains(effects, k.effect) {
				names = append(names, k.name)
			}
		}
	}
	return names
}

// Value returns the value of a key from KeysOn.
func (s *Split) Value(key string) any {
	return cmp.Or(batchTable.find(key), splitTable.find(key)).get(s)
}

// allTables lists the tables in the order of config.toml. If two tables have a key of the same
// name, messages name the first one.
var allTables = []*table{
	&topTable, &batchTable, &splitTable, &sourceTable, &stageTable, &arrayTable, &memoryTable, &mountTable, &storeTable, &logTable,
}

var topTable = table{name: "front of all tables", keys: []key{
	{name: "mountpoint", effect: OnMount, example: "/mnt/batches", isFile: true,
		valueType: nonEmpty(func(c *Config) *string { return &c.Mountpoint }, "a path"),
		help:      "An empty directory; batchfs mount MOUNTPOINT overrides it."},
}}

const inBytes = "in bytes"

const maxRowsReason = "so that numbers of rows fit in 64 bits"

var batchTable = table{name: "[batch]", help: "What a batch contains. These keys apply to all splits. " +
	"A split can set any of them in its own table, which takes precedence over [batch] and over --set batch.KEY.", keys: []key{
	{name: "batch_size", effect: OnBytes, initial: 12, inPath: true,
		valueType: wholeNumber(func(c *Split) *int { return &c.BatchSize }, 1, sampler.MaxRows).because(maxRowsReason),
		help: "B, the number of rows in a batch. Set it to the number of rows that a rank takes at once: in a training step, or in a micro-batch of one. " +
			"batch_size times world may be at most 16777216."},
	{name: "block_size", effect: OnRows, initial: 1024, inPath: true,
		valueType: wholeNumber(func(c *Split) *int { return &c.BlockSize }, 1, sampler.MaxBlockSize),
		help: "T, the number of tokens in a row. Set it to the context length of the model. " +
			"Token files with fewer than T+1 tokens have no rows, unless join is true."},
	{name: "format", effect: OnReading, advanced: true, initial: "auto", valueType: oneOf(func(c *Split) *string { return &c.Format }, format.Names()...),
		help: "The format of the token files. With auto, batchfs recognizes the format of each file, and treats " +
			"other files as headerless, unless they begin, end or are named like files of another kind. Name a format to reject files of any other. " +
			"Set headerless for files that are only named like others."},
	{name: "tensor", effect: OnReading, advanced: true, example: "tokens", valueType: nonEmpty(func(c *Split) *string { return &c.Tensor }, "the name of a tensor"),
		help: "The tensor to read from a file that has several. Set it for .safetensors files with more than one tensor."},
	{name: "token_dtype", effect: OnReading, example: "uint16", valueType: oneOf(func(c *Split) *array.DType { return &c.TokenDType }, array.DTypes()...),
		help: "The dtype of headerless files, little-endian. The default is the dtype in the vocab.json of batchfs prepare, " +
			"or uint16. Set it if that is wrong, or if a file is rejected because it looks like another dtype."},
	{name: "shape", effect: OnReading, advanced: true, example: []any{768}, valueType: shape(func(c *Split) *[]int { return &c.Shape }),
		help: "The shape of one element of headerless files. Set it if an element has several numbers, " +
			"such as a row of a matrix. It needs layout = \"rows\"."},
	{name: "vocab_size", effect: OnNothing, initial: 0, valueType: wholeNumber(func(c *Split) *int64 { return &c.VocabSize }, 0, 1<<32),
		help: "The number of different tokens, or 0 if unknown. Set it if there is no vocab.json of batchfs prepare. " +
			"A token at or above it is then an error that names the file and the position."},
	{name: "dtype", effect: OnBytes, initial: "native", inPath: true,
		valueType: oneOf(func(c *Split) *array.DType { return &c.DType }, append(integerDTypes(), sampler.Native)...),
		help: "The dtype of tokens in a batch, little-endian. native is the dtype of the token files. " +
			"Set int64 for PyTorch embeddings. A token that does not fit is an error."},
	{name: "layout", effect: OnRows, initial: "xy", inPath: true,
		valueType: oneOf(func(c *Split) *sampler.Layout { return &c.Layout }, sampler.XY, sampler.Tokens, sampler.Rows),
		help: "The arrays of a batch.\n" +
			"  xy: x of shape (B, T), then y of the same shape, one token later.\n" +
			"  tokens: one array of shape (B, T+1).\n" +
			"  rows: B elements of any array; block_size does not matter."},
	{name: "order", effect: OnRows, initial: "random", inPath: true,
		valueType: oneOf(func(c *Split) *sampler.Order { return &c.Order },
			sampler.Random, sampler.Shuffle, sampler.Sequential, sampler.Torch, sampler.Torch26),
		help: "How rows are chosen.\n" +
			"  random: windows that begin anywhere.\n" +
			"  shuffle: windows of T+1 tokens that begin T apart, each once per epoch, in random order.\n" +
			"  sequential: the same windows, one after the other; for validation.\n" +
			"  torch: the windows of nanoGPT, bit for bit. Needs a single file, or join = true.\n" +
			"  torch-2.6: the same, with the random numbers of PyTorch 2.6 and older."},
	{name: "source", effect: OnRows, example: "web", inPath: true, valueType: sourceName(func(c *Split) *string { return &c.Source }),
		help: "The name of the only source of a mixture to read. Usually set in the path, to compute the loss on each source. " +
			"Batches then have the rows that the mixture draws from this source, in the same order."},
	{name: "seed", effect: OnRows, initial: 1337, inPath: true, valueType: wholeNumber(func(c *Split) *uint64 { return &c.Seed }, 0, math.MaxInt64),
		help: "The seed of the random numbers. random and shuffle combine it with the name of the split, and torch " +
			"with the rank. Change it to get other rows."},
	{name: "torch_state", effect: OnRows, advanced: true, example: "rng.bin", isFile: true, valueType: nonEmpty(func(c *Split) *string { return &c.StateFile }, "a path"),
		help: "A file with the result of torch.get_rng_state(), 5056 bytes, for the torch orders. " +
			"Set it to continue from that state instead of from seed. It needs rank = 0 and world = 1."},
	{name: "rank", effect: OnBytes, initial: 0, inPath: true, valueType: wholeNumber(func(c *Split) *int { return &c.Rank }, 0, sampler.MaxRows-1),
		help: "The rank of the reader, from 0 to world-1. Usually set in the path. Batch k of rank r has the rows " +
			"k*B*world + r*B to k*B*world + r*B + B-1. The torch orders use seed + rank as their seed."},
	{name: "world", effect: OnBytes, initial: 1, inPath: true, valueType: wholeNumber(func(c *Split) *int { return &c.World }, 1, sampler.MaxRows),
		help: "The number of ranks. Usually set in the path, together with rank."},
	{name: "shuffle_block", effect: OnRows, initial: 0, inPath: true, valueType: size(func(c *Split) *int64 { return &c.ShuffleBlock }, 64<<10, 1<<40),
		help: "The size of the runs of tokens that order = \"shuffle\" shuffles. Rows come from 16 runs at a time. " +
			"Set it for tokens in a store, so that each host reads only its own share of them. It must be a multiple of " +
			"store.block_bytes. 0 shuffles all tokens."},
	{name: "local_world", effect: OnRows, initial: 1, inPath: true, valueType: wholeNumber(func(c *Split) *int { return &c.LocalWorld }, 1, sampler.MaxRows),
		help: "With shuffle_block, the number of ranks on each host. Set it to torchrun's LOCAL_WORLD_SIZE. " +
			"It must divide world, and there may be at most 65536 hosts."},
	{name: "documents", effect: OnRows, initial: false, valueType: documents,
		help: "Whether a batch has the arrays cu_seqlens and positions, which say where documents end. Set it for attention " +
			"within documents. A document ends where the index next to the token file says, or after eot if there is none. " +
			"With \"files\", each file is one document."},
	{name: "document_numbers", effect: OnBytes, initial: false, valueType: boolean(func(c *Split) *bool { return &c.DocumentNumbers }),
		help: "Whether a batch has the array document_numbers, with the number of each document in a row. " +
			"Set it to join data of your own, such as ids, licenses or domains. Documents are numbered within their source, from 0; " +
			"padding has -1. It needs an index of documents, or documents = \"files\"."},
	{name: "eot", effect: OnRows, example: 50256, valueType: wholeNumber(func(c *Split) *int64 { return &c.EndOfText }, 0, math.MaxInt64),
		help: "The last token of each document in token files without an index. It also pads rows other than windows. " +
			"The default is the one in the vocab.json of batchfs prepare."},
	{name: "bos", effect: OnRows, example: 50256, valueType: wholeNumber(func(c *Split) *int64 { return &c.BeginOfText }, 0, math.MaxInt64),
		help: "A token that begins every segment of a document. It needs rows other than windows. If a document is cut, bos " +
			"replaces the first token of its next segment, which repeats the last token of the segment before. It also pads rows. " +
			"Every document must begin with it, as after batchfs prepare --eot begin."},
	{name: "mask_targets", effect: OnRows, initial: false, valueType: maskTargets,
		help: "Whether ignore_index replaces a target in another document than the token before it. " +
			"It then does not count in the loss. With the name of an array, also if the array's element for the target is 0; " +
			"documents then need not be known. It needs a signed dtype."},
	{name: "ignore_index", effect: OnRows, advanced: true, initial: sampler.DefaultIgnoreIndex, valueType: wholeNumber(func(c *Split) *int64 { return &c.IgnoreIndex }, math.MinInt64, -1),
		help: "The target that mask_targets sets. Set it to the ignore_index of the loss."},
	{name: "rows", effect: OnRows, initial: "windows",
		valueType: oneOf(func(c *Split) *sampler.RowContent { return &c.Rows },
			sampler.Windows, sampler.OfDocument, sampler.DocumentFirst, sampler.Packed),
		help: "What a row contains.\n" +
			"  windows: T+1 consecutive tokens.\n" +
			"  document: one document, or a part of one.\n" +
			"  document-first: the beginning of one document.\n" +
			"  packed: as many whole documents as fit.\n" +
			"All except windows need an index of documents. They pad rows with bos, eot or 0, and add the array lengths, " +
			"the number of tokens in each row of x."},
	{name: "too_long", effect: OnRows, initial: "cut",
		valueType: oneOf(func(c *Split) *sampler.TooLong { return &c.TooLong }, sampler.Cut, sampler.Drop, sampler.Truncate),
		help: "What happens to a document that is longer than a row, T+1 tokens. It needs rows other than windows.\n" +
			"  cut: its parts are in several rows.\n" +
			"  drop: no row has any of its tokens.\n" +
			"  truncate: only its first T+1 tokens are read, as always with document-first.\n" +
			"Set drop or truncate for chats: the tail of a chat that is cut trains without its prompt. info.json and README count these documents."},
	{name: "start", effect: OnMount, initial: 0, inPath: true, valueType: wholeNumber(func(c *Split) *uint64 { return &c.Start }, 0, sampler.MaxBatches-1),
		help: "The number of the first batch that `next` returns. To resume a run, set it to the number of batches that were read, which is the number of the next one."},
	{name: "steps", effect: OnSizes, example: 10000, inPath: true, valueType: wholeNumber(func(c *Split) *uint64 { return &c.Steps }, 1, sampler.MaxBatches),
		help: "The number of batches in batches.bin and batches.npy. The default is one epoch; with shuffle_block, " +
			"one epoch of the host with the fewest batches."},
}}

var splitTable = table{name: "[splits.X]", help: "A split. X is the name of its directory in the mount. There can be any number of splits. " +
	"A split can have these keys and all keys of [batch].", keys: []key{
	{name: "tokens", effect: OnReading, example: "data/train.bin", valueType: paths(func(c *Split) *[]string { return &c.Tokens }),
		help: "The token files, which form one array in this order. The matches of a glob are sorted; wildcards skip names that begin with a dot. Objects are named " +
			"s3://bucket/key or gs://bucket/key. Files without tokens that a glob matches are left out. Every split needs either tokens or sources."},
	{name: "join", effect: OnReading, initial: false, valueType: boolean(func(c *Split) *bool { return &c.Join }),
		help: "Whether a row may begin in one file and end in the next. Set it if the files are parts of one text, " +
			"or shorter than T+1 tokens."},
	{name: "on_change", effect: OnNothing, initial: "error", valueType: oneOf(func(c *Split) *string { return &c.OnChange }, "error", "follow"),
		help: "What happens if a token file changes while it is mounted.\n" +
			"  error: reads fail until the old file is back.\n" +
			"  follow: the next batch has the new tokens. Append to the file, or replace it by renaming another file."},
	{name: "expect_fingerprint", effect: OnNothing, example: "9f86d081884c7d659a2feaa0c55ad015", valueType: fingerprint,
		help: "The fingerprint that the token files must have, from info.json. Set it so that a run cannot continue with " +
			"other data than it began with."},
	{name: "sources", effect: OnReading, valueType: listOf(func(c *Split) bool { return len(c.Sources) > 0 })},
	{name: "stages", effect: OnSchedule, valueType: listOf(func(c *Split) []Stage { return c.StageTables })},
	{name: "arrays", effect: OnReading, valueType: listOf(func(c *Split) []AlignedArray { return c.Aligned })},
}}

var sourceTable = table{name: "[[splits.X.sources]]", help: "A source of a mixture. A split has either sources or tokens. " +
	"Each source supplies rows in proportion to its weight, exact to within one row among the first n rows, for any n. " +
	"Each source goes through its tokens in its own epochs. The order of the sources determines the rows: append new ones, and keep a " +
	"retired one in its place with weight 0.", keys: []key{
	{name: "name", effect: OnNothing, example: "web", valueType: sourceName(func(c *Source) *string { return &c.Name }),
		help: "The name of this source in info.json, metrics and paths. The default is its number, from 0. It does not affect rows."},
	{name: "tokens", effect: OnReading, example: "data/web-*.bin", valueType: paths(func(c *Source) *[]string { return &c.Tokens }),
		help: "The token files of this source, like tokens in [splits.X]."},
	{name: "weight", effect: OnSchedule, example: 7, valueType: weight,
		help: "The weight of this source, relative to the others. Weights need not add up to 1. With 0, it is not read."},
	{name: "max_epochs", effect: OnSchedule, example: 4, valueType: positive(func(c *Source) *float64 { return &c.MaxEpochs }),
		help: "How many epochs of this source are read, by all ranks together. After that, the other sources go on in the same proportions. " +
			"When no source is left, the batches end."},
	{name: "vocab_size", effect: OnNothing, example: 50257, valueType: wholeNumber(func(c *Source) *int64 { return &c.VocabSize }, 0, 1<<32),
		help: "The vocab_size of this source. The default is the split's vocab_size."},
	{name: "arrays", effect: OnReading, valueType: listOf(func(c *Source) []AlignedArray { return c.Aligned })},
}}

var stageTable = table{name: "[[splits.X.stages]]", help: "A stage of a mixture that changes during a run. Stages replace the weights of sources. " +
	"The first stage begins with the run, and each further one at from_tokens or from_row. Each source continues with its own next row. " +
	"The torch orders have no stages.", keys: []key{
	{name: "weights", effect: OnSchedule, example: inlineTable("{web = 9, math = 1}"), valueType: weights,
		help: "The weights of the sources, by name. A source that is left out is not read in this stage."},
	{name: "from_tokens", effect: OnSchedule, example: "250B", valueType: tokens,
		help: "The number of tokens, on all ranks, after which this stage begins. It is divided by block_size and rounded up to a row."},
	{name: "from_row", effect: OnSchedule, advanced: true, example: 122070313, valueType: wholeNumber(func(c *Stage) *uint64 { return &c.FromRow }, 1, math.MaxInt64),
		help: "The global number of the first row of this stage, instead of from_tokens."},
}}

var arrayTable = table{name: "[[splits.X.arrays]]", help: "An array that is aligned with the tokens, with one element for each: " +
	"a loss mask, weights, a teacher's logits. The default is the arrays listed in the vocab.json written by batchfs prepare, " +
	"such as a mask; arrays = [] serves none. If the split has sources, use [[splits.X.sources.arrays]] for each.", keys: []key{
	{name: "name", effect: OnRows, example: "mask", valueType: arrayName, help: "The name of the array in a batch."},
	{name: "files", effect: OnReading, example: "data/train-mask-*.npy", valueType: paths(func(c *AlignedArray) *[]string { return &c.Files }),
		help: "The files of the array. Together they need as many elements as there are tokens."},
	{name: "at", effect: OnRows, advanced: true, initial: "y", valueType: oneOf(func(c *AlignedArray) *sampler.At { return &c.At }, sampler.AtX, sampler.AtY),
		help: "The array to align with. With y, element t of a row belongs to y[t]."},
	{name: "format", effect: OnReading, advanced: true, initial: "auto", valueType: oneOf(func(c *AlignedArray) *string { return &c.Format }, format.Names()...),
		help: "The format of the files, like format in [batch]."},
	{name: "tensor", effect: OnReading, advanced: true, example: "mask", valueType: nonEmpty(func(c *AlignedArray) *string { return &c.Tensor }, "the name of a tensor"),
		help: "The tensor to read, like tensor in [batch]."},
	{name: "dtype", effect: OnReading, example: "uint8", valueType: oneOf(func(c *AlignedArray) *array.DType { return &c.DType }, array.DTypes()...),
		help: "The dtype of headerless files, like token_dtype in [batch]."},
	{name: "shape", effect: OnReading, example: []any{32}, valueType: shape(func(c *AlignedArray) *[]int { return &c.Shape }),
		help: "The shape of one element, like shape in [batch]."},
}}

var memoryTable = table{name: "[memory]", help: "How token files are read. These keys affect speed and memory, but never what is read. " +
	"batchfs restart applies changes to all of them.", keys: []key{
	{name: "access", effect: OnNothing, initial: "remap",
		valueType: oneOf(func(c *Memory) *localfile.Access { return &c.Access }, localfile.Remap, localfile.Advise, localfile.Pread),
		help: "How a read of a batch gets its tokens.\n" +
			"  remap: map the file, copy the rows and unmap it, like nanoGPT.\n" +
			"  advise: keep the file mapped, and release its pages after each read (MADV_DONTNEED).\n" +
			"  pread: read row by row; faster with several readers.\n" +
			"With all of them, resident memory stays at the size of a batch. With remap, aligned arrays are read with pread, " +
			"and so is a file that cannot be mapped."},
	{name: "page_cache", effect: OnNothing, advanced: true, initial: "keep", valueType: oneOf(func(c *Memory) *string { return &c.PageCache }, "keep", "drop"),
		help: "Whether tokens stay in the kernel's page cache after a read. Set drop on machines with little memory. " +
			"Reading the same tokens again then has to read the disk."},
	{name: "ahead", effect: OnNothing, initial: 2, valueType: wholeNumber(func(c *Memory) *int { return &c.PrefetchBatches }, 0, 1024),
		help: "The number of batches to prefetch for each reader that reads in order. Raise it for a slow disk or store. " +
			"With 0, nothing is prefetched, and the batches are the same."},
	{name: "ahead_bytes", effect: OnNothing, advanced: true, initial: 64 << 20, valueType: wholeNumber(func(c *Memory) *int64 { return &c.PrefetchBytes }, 0, 1<<40).because(inBytes),
		help: "The memory for all prefetched batches, in bytes; at most half of budget is used. Raise it, and budget, " +
			"for large batches or many readers."},
	{name: "budget", effect: OnNothing, initial: 128 << 20, valueType: wholeNumber(func(c *Memory) *int64 { return &c.Budget }, 16<<20, 1<<40).because(inBytes),
		help: "The memory that the serving process may use for its readers, in bytes. It uses about 20 MiB more. " +
			"Raise it for many readers of large batches. Readers beyond it have to wait."},
}}

// maxID is the largest user or group ID. The kernel reserves the next number to mean none.
const maxID = math.MaxUint32 - 1

var mountTable = table{name: "[mount]", help: "The mount itself. batchfs restart applies only changes to timeout and settings_per_user.", keys: []key{
	{name: "allow_other", effect: OnMount, initial: false, valueType: boolean(func(c *Mount) *bool { return &c.AllowOther }),
		help: "Whether users other than the one who mounts may read. Set it for services. Unless root mounts, " +
			"/etc/fuse.conf needs the line user_allow_other. With mount --fd, the process that mounts decides."},
	{name: "mode", effect: OnMount, advanced: true, initial: "0444", valueType: mode,
		help: "The permissions of files. Set \"0440\" or \"0400\" to keep other users out. " +
			"Users who may read files may also list directories."},
	{name: "uid", effect: OnMount, advanced: true, example: 1000, valueType: wholeNumber(func(c *Mount) *int64 { return &c.UID }, 0, maxID),
		help: "The user who owns the files. The default is the user who mounts."},
	{name: "gid", effect: OnMount, advanced: true, example: 1000, valueType: wholeNumber(func(c *Mount) *int64 { return &c.GID }, 0, maxID),
		help: "The group that owns the files. The default is the group of the user who mounts."},
	{name: "timeout", effect: OnNothing, initial: "30s",
		valueType: duration(func(c *Mount) *time.Duration { return &c.Timeout }, 100*time.Millisecond, 24*time.Hour),
		help:      "How long a read waits for its token files before it fails. Raise it for slow disks and stores."},
	{name: "settings_per_user", effect: OnNothing, advanced: true, initial: 4096, valueType: wholeNumber(func(c *Mount) *int { return &c.SettingsPerUser }, 0, 65535),
		help: "How many settings directories, such as train/seed=7, each user may have. Lower it if users do not trust " +
			"each other. All users together have 65535; root and uid may use all of them."},
	{name: "grace", effect: OnMount, initial: "10s", valueType: duration(func(c *Mount) *time.Duration { return &c.Grace }, 0, 24*time.Hour),
		help: "How long open files can still be read after the mount is told to stop. " +
			"To let readers finish an epoch, raise it to the time that an epoch takes."},
	{name: "metrics_listen", effect: OnMount, example: "127.0.0.1:9137", valueType: address(func(c *Mount) *netip.AddrPort { return &c.MetricsListen }),
		help: "The address at which to serve metrics for Prometheus over HTTP, at /metrics. Set it to collect metrics from outside; " +
			"the mount also has them, in its file metrics. Anyone who can reach the address can read them."},
}}

var storeTable = table{name: "[store]", help: "Object storage, for tokens named s3://bucket/key or gs://bucket/key. " +
	"Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws, a web identity token, or the role of the " +
	"container or machine. For gs://, they are HMAC keys. batchfs restart applies changes to all of these keys.", keys: []key{
	{name: "endpoint", effect: OnNothing, example: "https://minio.example.com:9000", valueType: nonEmpty(func(c *Store) *string { return &c.Endpoint }, "the URL of a host"),
		help: "The URL of the store. Set it for a store of your own. The default is AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; " +
			"if neither is set, AWS, or Google for gs://. TLS is used unless the URL begins with http://. SSL_CERT_FILE names a file of certificate authorities to trust."},
	{name: "region", effect: OnNothing, advanced: true, example: "eu-central-1", valueType: nonEmpty(func(c *Store) *string { return &c.Region }, "the name of a region"),
		help: "The region of the buckets. The default is AWS_REGION, AWS_DEFAULT_REGION, or else what AWS reports for the bucket."},
	{name: "path_style", effect: OnNothing, initial: false, valueType: boolean(func(c *Store) *bool { return &c.PathStyle }),
		help: "Whether URLs name the bucket in the path instead of in the host name. Many stores other than AWS need it."},
	{name: "anonymous", effect: OnNothing, initial: false, valueType: boolean(func(c *Store) *bool { return &c.Anonymous }),
		help: "Whether to read without credentials. Set it for public buckets."},
	{name: "cache_dir", effect: OnNothing, example: "/var/cache/batchfs", isFile: true, valueType: nonEmpty(func(c *Store) *string { return &c.CacheDir }, "a path"),
		help: "The directory of the block cache. It holds fetched blocks for all of the user's mounts on this host. Without it, every epoch " +
			"fetches everything again. batchfs creates it with mode 0700, and rejects a directory that belongs to another user, " +
			"or that others may write to. You can delete it at any time."},
	{name: "cache_shared", effect: OnNothing, advanced: true, initial: false, valueType: boolean(func(c *Store) *bool { return &c.CacheShared }),
		help: "Whether the group of cache_dir may use it too. Set it if the members of the group trust each other. " +
			"The directory then has mode 2770."},
	{name: "cache_bytes", effect: OnNothing, initial: 64 << 30, valueType: wholeNumber(func(c *Store) *int64 { return &c.CacheBytes }, 0, 1<<50).because(inBytes),
		help: "The maximum size of cache_dir, in bytes. Set it to what the readers of this host need; batchfs cache status " +
			"shows that. Blocks that do not fit are fetched again in every epoch."},
	{name: "block_bytes", effect: OnNothing, advanced: true, initial: 4 << 20, valueType: wholeNumber(func(c *Store) *int64 { return &c.BlockBytes }, 64<<10, 1<<30).because(inBytes),
		help: "How much to fetch at a time, in bytes. Raise it if each request costs time or money. " +
			"Blocks in cache_dir that have another size are not used."},
}}

var logTable = table{name: "[log]", help: "What is written to standard error, or to the file named by mount --log.", keys: []key{
	{name: "level", effect: OnNothing, initial: "info", valueType: oneOf(func(c *Log) *string { return &c.Level }, "debug", "info", "warn", "error"),
		help: "The lowest level to log. Set warn to log only warnings and errors."},
	{name: "format", effect: OnNothing, advanced: true, initial: "text", valueType: oneOf(func(c *Log) *string { return &c.Format }, "text", "json"),
		help: "The format of a line: text has key=value pairs, json is a JSON object. Set json for a log collector."},
}}

// NewAlignedArray returns an array that is aligned with the targets. dtype and the shape of an
// element, nil for a number, are those of headerless files. ok reports whether a configuration
// could have such an array.
func NewAlignedArray(name, dtype string, shape []int) (a AlignedArray, ok bool) {
	arrayTable.setDefaults(&a)
	var axes []any
	for _, axis := range shape {
		axes = append(axes, int64(axis))
	}
	return a, arrayTable.find("name").set(&a, name) && arrayTable.find("dtype").set(&a, dtype) && (shape == nil || arrayTable.find("shape").set(&a, axes))
}
