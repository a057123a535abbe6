package main

import (
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// Each mistake is met with the way out, and no password is shown.
func TestMistakes(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"data/train.bin": 1000})
	testfiles.Write(t, map[string]string{"a.parquet": "PAR1" + strings.Repeat("x", 100) + "PAR1", "mnt/.keep": ""})
	t.Setenv("AWS_ENDPOINT_URL", "http://user:secret@ho%zz:9000")
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	for args, want := range map[string]string{
		"mount data mnt":             "mount takes a MOUNTPOINT alone: name the directory of token files with --data: batchfs mount --data data mnt",
		"mount a.parquet mnt":        "batchfs prepare makes them of text, and of the column of a Parquet file that --field names",
		"cat train --data a.parquet": "--data a.parquet: is a file: name the directory of token files; one file of tokens is mounted with --set splits.train.tokens=a.parquet in place of --data; of text, batchfs prepare a.parquet --out DIR makes some",
		"info a.parquet":             "a.parquet is a Parquet file, not tokens; batchfs prepare makes tokens of its column of text, which --field names",
		"info s3://bucket/a.bin":     `(got "xxxxx@ho%zz:9000")`,
		"cat train --data data --set batch.token_dtype=uint32 --set batch.rows=packed": `rows = "packed" needs documents, and nothing says where the documents of`,
		"prepare a.parquet --mask a:0,b:1 --by byte --out out":                         "write the rows as lines of .jsonl for a:0,b:1",
	} {
		if out, err := runHere(t.Context(), rootCommand(), strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("batchfs %s: %v (%s), want: %s", args, err, out, want)
		}
	}
	for args, want := range map[string]string{
		"cache status --data data --set batch.token_dtype=uint32 --set store.cache_dir=not/there": "not/there: 0 bytes of ",
		"version": "batchfs v",
	} {
		if out, err := runHere(t.Context(), rootCommand(), strings.Fields(args)...); err != nil || !strings.Contains(out, want) {
			t.Errorf("batchfs %s: %v %q, want %q", args, err, out, want)
		}
	}
}

// Inspect shows the beginning of each row, and all of it to those who say --chars.
func TestInspectShowsTheBeginning(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Write(t, map[string]string{"a.bin": strings.Repeat("e\x00", 4000), "vocab.json": `{"kind": "byte", "vocab_size": 256, "token_dtype": "uint16"}`})
	for chars, want := range map[string]string{"": "    " + strings.Repeat("e", 200) + "…\n", "--chars=3": "    eee…\n", "--chars=300": "    " + strings.Repeat("e", 300) + "\n"} {
		args := strings.Fields("train 0 --set splits.train.tokens=a.bin --set batch.block_size=300 " + chars)
		if out := inspect(t, args...); strings.Count(out, want) != 12 {
			t.Errorf("%s: %s", chars, out)
		}
	}
}
