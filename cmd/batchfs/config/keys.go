package config

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"batchfs/cache/array"
	"batchfs/cache/format"
	"batchfs/cache/localfile"
	"batchfs/sampler"
)

// A table is one table of config.toml, with its keys in the order of that file.
type table struct {
	name string // in brackets, as in config.toml
	what string
	keys []key
}

// A key is one key of a table: all that messages, config.toml, paths and restart need to know of it.
type key struct {
	name      string
	initial   any    // the default; nil for none
	example   any    // what config.toml shows of a key without a default
	inPath    bool   // a path may set it, as in train/rank=3,world=8
	restart   bool   // restart may change it
	isFile    bool   // the path of a file, relative to the file that it stands in
	valueType        // of its value
	what      string // it is; the rule of its type follows
	when      string // to change it, and what else to know
}

func (t *table) find(name string) *key {
	if i := slices.IndexFunc(t.keys, func(k key) bool { return k.name == name }); i >= 0 {
		return &t.keys[i]
	}
	return nil
}

// setInitial sets the fields of c to the defaults.
func (t *table) setInitial(c any) {
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

// allTables are the tables of config.toml, in the order of config.toml. A key that stands in two belongs to the first, for messages.
var allTables = []*table{&topTable, &batchTable, &splitTable, &sourceTable, &arrayTable, &memoryTable, &mountTable, &storeTable, &logTable}

var topTable = table{name: "front of all tables", keys: []key{
	{name: "mountpoint", example: "/mnt/batches", isFile: true, valueType: text(func(c *Config) *string { return &c.Mountpoint }, "a path"),
		what: "An empty directory to mount on",
		when: "`batchfs mount MOUNTPOINT` overrides it."},
}}

var batchTable = table{name: "[batch]", what: "What a batch is, for all splits. " +
	"[splits.X] may have these keys too, and overrides [batch] and --set batch.KEY.", keys: []key{
	{name: "batch_size", initial: 12, inPath: true, valueType: whole(func(c *Split) *int { return &c.BatchSize }, 1, sampler.MaxRows),
		what: "B, the rows of a batch",
		when: "Set it to what a training step takes. batch_size times world may be 16777216 at most."},
	{name: "block_size", initial: 1024, inPath: true, valueType: whole(func(c *Split) *int { return &c.BlockSize }, 1, sampler.MaxBlockSize),
		what: "T, the tokens of a row",
		when: "Set it to the context of the model. Each token file needs at least T+1 tokens."},
	{name: "format", initial: "auto", valueType: word(func(c *Split) *string { return &c.Format }, format.Names()...),
		what: "How the files are laid out",
		when: "auto takes a file for what it shows, or for headerless. Name a format to refuse files of others."},
	{name: "tensor", example: "tokens", valueType: text(func(c *Split) *string { return &c.Tensor }, "the name of a tensor"),
		what: "Which array of a file that has several",
		when: "Set it for .safetensors files with more than one tensor."},
	{name: "token_dtype", example: "uint16", valueType: word(func(c *Split) *array.DType { return &c.TokenDType }, array.DTypes()...),
		what: "What headerless files hold, little-endian",
		when: "Set it where no vocab.json of batchfs prepare says it, and uint16 is wrong; or where a file is refused for what it looks like."},
	{name: "shape", example: []any{768}, valueType: shape(func(c *Split) *[]int { return &c.Shape }),
		what: "The shape of an element of headerless files",
		when: "Set it for elements of several numbers, such as rows of a matrix. It needs layout = \"rows\"."},
	{name: "vocab_size", initial: 0, restart: true, valueType: whole(func(c *Split) *int64 { return &c.VocabSize }, 0, 1<<32),
		what: "How many different tokens there are",
		when: "Set it where no vocab.json of batchfs prepare says it: a token at or above it is then an error that names the file and the place."},
	{name: "dtype", initial: "native", inPath: true, valueType: word(func(c *Split) *array.DType { return &c.DType }, append(integers(), sampler.Native)...),
		what: "What readers get, little-endian",
		when: "native is what the files hold. Set int64 for torch's embeddings. A number that does not fit is an error."},
	{name: "layout", initial: "xy", inPath: true, valueType: word(func(c *Split) *sampler.Layout { return &c.Layout }, sampler.XY, sampler.WholeRows, sampler.Elements),
		what: "How a batch is laid out",
		when: "xy is x (B, T), then y, one token later; tokens is one array (B, T+1); rows is B elements of any array, whatever block_size is."},
	{name: "order", initial: "random", inPath: true, valueType: word(func(c *Split) *sampler.Order { return &c.Order },
		sampler.Random, sampler.Shuffle, sampler.Sequential, sampler.Torch, sampler.Torch26),
		what: "Where rows begin",
		when: "random: anywhere; shuffle: each window of T once an epoch; sequential: window after window, for validation;\n" +
			"torch: nanoGPT's rows, bit for bit, of one file or with join = true (torch-2.6: as PyTorch up to 2.6)."},
	{name: "seed", initial: 1337, inPath: true, valueType: whole(func(c *Split) *uint64 { return &c.Seed }, 0, math.MaxInt64),
		what: "What random and shuffle depend on, with the split's name, and torch with the rank",
		when: "Change it for other rows."},
	{name: "torch_state", example: "rng.bin", isFile: true, valueType: text(func(c *Split) *string { return &c.StateFile }, "a path"),
		what: "For the torch orders, a file of what torch.get_rng_state() gave, 5056 bytes",
		when: "Set it to continue from there and not from the seed. rank must be 0, and world 1."},
	{name: "rank", initial: 0, inPath: true, valueType: whole(func(c *Split) *int { return &c.Rank }, 0, sampler.MaxRows-1),
		what: "Which of world readers this one is",
		when: "Best set in the path. Batch k of rank r has rows k*B*world + r*B to k*B*world + r*B + B-1; a torch order draws with seed + rank."},
	{name: "world", initial: 1, inPath: true, valueType: whole(func(c *Split) *int { return &c.World }, 1, sampler.MaxRows),
		what: "How many ranks there are",
		when: "Best set in the path, with rank."},
	{name: "shuffle_block", initial: 0, inPath: true, valueType: size(func(c *Split) *int64 { return &c.ShuffleBlock }, 64<<10, 1<<40),
		what: "With shuffle, how much of the tokens rows are drawn from at a time",
		when: "Set it for tokens in a store, to a multiple of store.block_bytes: each host then reads a share of its own. 0 draws from everywhere."},
	{name: "local_world", initial: 1, inPath: true, valueType: whole(func(c *Split) *int { return &c.LocalWorld }, 1, sampler.MaxRows),
		what: "With shuffle_block, how many ranks are on one host",
		when: "Set it to torchrun's LOCAL_WORLD_SIZE. It divides world; there may be 65536 hosts."},
	{name: "documents", initial: false, valueType: documents,
		what: "Whether a batch says where documents end, in the arrays cu_seqlens and positions",
		when: "Set it for attention within documents. They end behind eot, or where the index beside a file says; with \"files\", each file is one."},
	{name: "eot", example: 50256, valueType: whole(func(c *Split) *int64 { return &c.EndOfText }, 0, math.MaxInt64),
		what: "The last token of each document",
		when: "Set it where no vocab.json of batchfs prepare says it."},
	{name: "mask_targets", initial: false, valueType: truth(func(c *Split) *bool { return &c.MaskTargets }),
		what: "Whether a target of another document than the token before is -100",
		when: "Set it so that no loss is taken there. It needs a signed dtype."},
	{name: "rows", initial: "windows", valueType: word(func(c *Split) *sampler.Rows { return &c.Rows },
		sampler.Windows, sampler.OfDocument, sampler.DocumentFirst, sampler.Packed),
		what: "What a row holds",
		when: "windows: any tokens; document: one document, or a part; document-first: its beginning; packed: whole documents, as many as fit.\n" +
			"All but windows need an index of documents, fill rows up with eot or 0, and say in the array lengths how many x are tokens."},
	{name: "start", initial: 0, inPath: true, valueType: whole(func(c *Split) *uint64 { return &c.Start }, 0, sampler.MaxBatches-1),
		what: "The number of the first batch that next gives",
		when: "To resume, set it to the step to continue with."},
	{name: "steps", example: 10000, inPath: true, valueType: whole(func(c *Split) *uint64 { return &c.Steps }, 1, sampler.MaxBatches),
		what: "How many batches batches.bin and batches.npy have",
		when: "Set it for a length of your own. Default: one epoch; with shuffle_block, of the host with the fewest batches."},
}}

var splitTable = table{name: "[splits.X]", what: "A directory X of the mount, any number of them. Besides the keys of [batch] it may have these.", keys: []key{
	{name: "tokens", example: "data/train.bin", valueType: paths(func(c *Split) *[]string { return &c.Tokens }),
		what: "The files that hold the tokens, one array in this order; a glob is sorted",
		when: "Every split has it, or sources. Objects are named s3://bucket/key or gs://bucket/key."},
	{name: "join", initial: false, valueType: truth(func(c *Split) *bool { return &c.Join }),
		what: "Whether a row may begin in one file and end in the next",
		when: "Set it for files that are parts of one, or shorter than T+1 tokens."},
	{name: "on_change", initial: "error", restart: true, valueType: word(func(c *Split) *string { return &c.OnChange }, "error", "follow"),
		what: "What happens when a token file is changed while it is mounted",
		when: "error: reads fail until it is put back; follow: the next batch has the new tokens. Replace a file by renaming, or append to it."},
	{name: "expect_fingerprint", example: "9f86d081884c7d659a2feaa0c55ad015", restart: true, valueType: fingerprint,
		what: "The fingerprint of info.json that the files must have",
		when: "Set it so that a run continues with the data that it began with."},
	{name: "sources", what: "A mixture, instead of tokens: a table for each source"},
	{name: "arrays", what: "Arrays beside the tokens, with an element for each: a table for each array"},
}}

var sourceTable = table{name: "[[splits.X.sources]]", what: "A source of a mixture, which a split has instead of tokens. Of any n rows from the first on, " +
	"each has its share, to within one row,\nand goes through its own tokens in its own epochs.", keys: []key{
	{name: "tokens", example: "data/web-*.bin", valueType: paths(func(c *Source) *[]string { return &c.Tokens }), what: "As in [splits.X]"},
	{name: "weight", example: 7, valueType: weight,
		what: "Its part of all rows, next to the others' weights",
		when: "Weights need not add up to 1."},
	{name: "vocab_size", example: 50257, restart: true, valueType: whole(func(c *Source) *int64 { return &c.VocabSize }, 0, 1<<32),
		what: "As in [batch], for this source", when: "Default: the split's."},
	{name: "arrays", what: "[[splits.X.sources.arrays]], the same for each source"},
}}

var arrayTable = table{name: "[[splits.X.arrays]]", what: "An array beside the tokens, with an element for each: a loss mask, weights, a teacher's logits. " +
	"Default: those that the vocab.json of\nbatchfs prepare names, such as its mask; arrays = [] serves none. Of a source: [[splits.X.sources.arrays]].", keys: []key{
	{name: "name", example: "mask", valueType: arrayName, what: "Its name in a batch"},
	{name: "files", example: "data/train-mask-*.npy", valueType: paths(func(c *AlignedArray) *[]string { return &c.Files }),
		what: "The files that hold it, together as many elements as the tokens"},
	{name: "at", initial: "y", valueType: word(func(c *AlignedArray) *sampler.At { return &c.At }, sampler.AtX, sampler.AtY),
		what: "Whose positions it has", when: "With y, its element t of a row belongs to y[t]."},
	{name: "format", initial: "auto", valueType: word(func(c *AlignedArray) *string { return &c.Format }, format.Names()...), what: "As in [batch]"},
	{name: "tensor", example: "mask", valueType: text(func(c *AlignedArray) *string { return &c.Tensor }, "the name of a tensor"), what: "As in [batch]"},
	{name: "dtype", example: "uint8", valueType: word(func(c *AlignedArray) *array.DType { return &c.DType }, array.DTypes()...), what: "As token_dtype in [batch]"},
	{name: "shape", example: []any{32}, valueType: shape(func(c *AlignedArray) *[]int { return &c.Shape }), what: "As in [batch]"},
}}

var memoryTable = table{name: "[memory]", what: "How tokens are fetched: what it costs, never what is read. `batchfs restart` changes any of these.", keys: []key{
	{name: "access", initial: "remap", valueType: word(func(c *Memory) *localfile.Access { return &c.Access }, localfile.Remap, localfile.Advise, localfile.Pread, localfile.Map),
		what: "What one read does",
		when: "remap: map, copy the rows, unmap, as nanoGPT; pread: read row by row, faster for several readers; advise: keep a mapping, give pages back.\n" +
			"Resident memory stays that of a batch; with map it grows to the files' size. Under remap, arrays beside the tokens are read with pread."},
	{name: "page_cache", initial: "keep", valueType: word(func(c *Memory) *string { return &c.PageCache }, "keep", "drop"),
		what: "The kernel's page cache of what was read",
		when: "Set drop on machines with little memory: reading again then costs the disk."},
	{name: "ahead", initial: 2, valueType: whole(func(c *Memory) *int { return &c.PrefetchBatches }, 0, 1024),
		what: "How many batches are made ready for each reader that reads in order",
		when: "Raise it for a disk or a store that answers late. The bytes are the same with 0."},
	{name: "ahead_bytes", initial: 64 << 20, valueType: whole(func(c *Memory) *int64 { return &c.PrefetchBytes }, 0, 1<<40),
		what: "The memory of all batches made ready, in bytes",
		when: "Raise it, and budget, for large batches or many readers. No more than half of budget counts."},
	{name: "budget", initial: 128 << 20, valueType: whole(func(c *Memory) *int64 { return &c.Budget }, 16<<20, 1<<40),
		what: "The memory that a process which serves takes for its readers, in bytes, besides some 20 MiB",
		when: "Raise it for many readers of large batches: those beyond it wait."},
}}

var mountTable = table{name: "[mount]", what: "The mount itself. `batchfs restart` changes timeout and settings_per_user only.", keys: []key{
	{name: "allow_other", initial: false, valueType: truth(func(c *Mount) *bool { return &c.AllowOther }),
		what: "Whether users other than the one that mounts may read",
		when: "Set it for services. Ordinary users need the line user_allow_other in /etc/fuse.conf. With mount --fd the process that mounts decides."},
	{name: "mode", initial: "0444", valueType: mode,
		what: "The permissions of files",
		when: "Set \"0440\" or \"0400\" to keep others out. Who may read can also list directories."},
	{name: "uid", example: 1000, valueType: whole(func(c *Mount) *int64 { return &c.UID }, 0, math.MaxUint32-1), // the last number means no user
		what: "Who owns the files", when: "Default: the user that mounts."},
	{name: "gid", example: 1000, valueType: whole(func(c *Mount) *int64 { return &c.GID }, 0, math.MaxUint32-1),
		what: "Which group owns the files", when: "Default: the group of the user that mounts."},
	{name: "timeout", initial: "30s", restart: true, valueType: duration(func(c *Mount) *time.Duration { return &c.Timeout }, 100*time.Millisecond, 24*time.Hour),
		what: "How long a read waits for its token files before its reader gets an error",
		when: "Raise it for disks and stores that answer late."},
	{name: "settings_per_user", initial: 4096, restart: true, valueType: whole(func(c *Mount) *int { return &c.SettingsPerUser }, 0, 65535),
		what: "How many directories of settings, such as train/seed=7, each user may have",
		when: "Lower it where users do not trust each other. All together have 65535; root and uid may have them all."},
	{name: "grace", initial: "10s", valueType: duration(func(c *Mount) *time.Duration { return &c.Grace }, 0, 24*time.Hour),
		what: "How long open files may be read when the mount is told to stop",
		when: "Raise it to the time of an epoch to let readers finish."},
	{name: "metrics_listen", example: "127.0.0.1:9137", valueType: address(func(c *Mount) *netip.AddrPort { return &c.MetricsListen }),
		what: "Where metrics are served over HTTP, at /metrics, for Prometheus",
		when: "Set it to collect them from outside; the file metrics of the mount has them too. Whoever reaches the address reads them."},
}}

var storeTable = table{name: "[store]", what: "Object storage, for tokens named s3://bucket/key or gs://bucket/key. " +
	"Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws,\n" +
	"a web identity token, or the role of the container or machine; for gs:// they are HMAC keys. `batchfs restart` changes any of these.", keys: []key{
	{name: "endpoint", example: "https://minio.example.com:9000", valueType: text(func(c *Store) *string { return &c.Endpoint }, "the URL of a host"),
		what: "The store",
		when: "Set it for a store of your own. Default: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, else AWS, or Google for gs://. Only http:// is without TLS;\n" +
			"SSL_CERT_FILE names the certificates of authorities to trust."},
	{name: "region", example: "eu-central-1", valueType: text(func(c *Store) *string { return &c.Region }, "the name of a region"),
		what: "The region of the buckets",
		when: "Default: AWS_REGION or AWS_DEFAULT_REGION, else what AWS says of the bucket."},
	{name: "path_style", initial: false, valueType: truth(func(c *Store) *bool { return &c.PathStyle }),
		what: "Whether a bucket stands in the path of a URL, not in the name of the host",
		when: "Many stores other than AWS need it."},
	{name: "anonymous", initial: false, valueType: truth(func(c *Store) *bool { return &c.Anonymous }),
		what: "Whether to read without credentials",
		when: "Set it for public buckets."},
	{name: "cache_dir", example: "/var/cache/batchfs", isFile: true, valueType: text(func(c *Store) *string { return &c.CacheDir }, "a path"),
		what: "A directory that keeps what was fetched, for all mounts of this host",
		when: "Set it, or every epoch fetches everything. batchfs makes it with mode 0700, and refuses one of another user, or that others may write to.\n" +
			"It may be deleted at any time."},
	{name: "cache_shared", initial: false, valueType: truth(func(c *Store) *bool { return &c.CacheShared }),
		what: "Whether the group of cache_dir may use it too",
		when: "Set it where the members of the group trust each other. The directory then has mode 2770."},
	{name: "cache_bytes", initial: 64 << 30, valueType: whole(func(c *Store) *int64 { return &c.CacheBytes }, 0, 1<<50),
		what: "How large cache_dir may become, in bytes",
		when: "Set it to what the readers of this host need, as batchfs cache status says; what has no room is fetched in every epoch."},
	{name: "block_bytes", initial: 4 << 20, valueType: whole(func(c *Store) *int64 { return &c.BlockBytes }, 64<<10, 1<<30),
		what: "What is fetched at a time, in bytes",
		when: "Raise it where each request costs time or money. Blocks that were kept with another size are of no use."},
}}

var logTable = table{name: "[log]", what: "What is written to standard error, or to mount's --log.", keys: []key{
	{name: "level", initial: "info", valueType: word(func(c *Log) *string { return &c.Level }, "debug", "info", "warn", "error"),
		what: "The lowest level that is logged", when: "Set warn for errors and warnings only."},
	{name: "format", initial: "text", valueType: word(func(c *Log) *string { return &c.Format }, "text", "json"),
		what: "How a line looks, key=value or an object", when: "Set json for a collector of logs."},
}}

// NewAlignedArray returns an array at the targets, of headerless files. It is not ok if no configuration could have such a name or dtype.
func NewAlignedArray(name, dtype string) (b AlignedArray, ok bool) {
	arrayTable.setInitial(&b)
	return b, arrayTable.find("name").set(&b, name) && arrayTable.find("dtype").set(&b, dtype)
}
