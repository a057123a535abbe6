package bench

// options are the flags of the command.
type options struct {
	tokens   string // file; empty: one is made
	dir      string // for temporary files
	python   string
	sets     []string
	full     bool
	memory   bool
	tokenize string // the directory of texts to encode; empty: measures batches
	json     string
	plot     string

	batches int // of each loading of memory

	rounds, steps int   // of every scene, for tests; 0: as the scene has it
	bytes         int64 // of the file that is made; 0: enough to be cold
}
