package config

import (
	"path/filepath"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// --data finds the token files of splits in a directory, and rejects it if they are ambiguous.
func TestData(t *testing.T) {
	const rule = "--data takes train.bin, or numbered files"
	for _, test := range []struct{ files, train, val, err string }{
		{"train.bin val.bin", "train.bin", "val.bin", ""},
		{"train.bin train_old.bin train_old_2.bin train.tmp.bin train.bin.bak val.bin.part", "train.bin", "", ""},
		{"train_1.bin train_2.bin train_old.bin train_1_old.bin", "train_1.bin train_2.bin", "", ""},
		{"train.bin train_1.bin train_2.bin", "", "", "data[1: both train.bin and train_1.bin exist; " + rule},
		{"train_000002.bin train_000001.bin val_000000.bin train_000003.bin.part", "train_000001.bin train_000002.bin", "val_000000.bin", ""},
		{"train_000001.bin train-00001-of-00002.bin", "", "", "data[1: train-00001-of-00002.bin and train_000001.bin are not files of one set; "},
		{"train-00000-of-00002.bin train-00001-of-00002.bin train_old.bin", "train-00000-of-00002.bin train-00001-of-00002.bin", "", ""},
		{"train-00000-of-00002.bin train-00000-of-00003.bin train-00001-of-00003.bin", "", "", "data[1: train-00000-of-00002.bin and train-00000-of-00003.bin are not files of one set; " + rule},
		{"train-00000-of-00012.bin train-00011-of-00012.bin", "", "", "data[1: train-00000-of-00012.bin is one of 12 files, but there are 2; "},
		{"train.bin val_1_of_2.bin", "", "", "data[1: val_1_of_2.bin is one of 2 files, but there are 1; "},
		{"a_train_1of2.npy a_train_2of2.npy val_1_of_1.npy", "a_train_1of2.npy a_train_2of2.npy", "val_1_of_1.npy", ""},
		{"val.bin train_old.bin", "", "val.bin", ""},
		{"train_old.bin val.tmp.bin", "", "", "data[1 has neither train*.bin nor val*.bin: " + rule},
		{"train_1.bin train_old_2.bin", "", "", "data[1: unclear whether train_old_2.bin belongs to the split; " + rule},
		{"fineweb_val_000000.bin fineweb_train_000001.bin fineweb_train_000002.bin", "fineweb_train_000001.bin fineweb_train_000002.bin", "fineweb_val_000000.bin", ""},
		{"train.npy val.npy pretrain_1.npy", "train.npy", "val.npy", ""},
		{"train_00000.ds train_00000.ds.index train_00000.ds.metadata train_00001.ds", "train_00000.ds train_00001.ds", "", ""},
		{"train_text_document.bin train_text_document.idx val_text_document.bin", "train_text_document.bin", "val_text_document.bin", ""},
		{"val.bin train_1.npy val_1.npy", "", "", "data[1: both val.bin and val_1.npy exist; " + rule},
		{"train.bin train.npy", "", "", "data[1: both train.bin and train.npy exist; " + rule},
		{"a_train_1.bin b_train_1.bin", "", "", "data[1: a_train_1.bin and b_train_1.bin are not files of one set; " + rule},
		{"train_1.bin train_2.npy", "", "", "data[1: train_1.bin and train_2.npy are not files of one set; "},
		{"train_text_document.bin train_1.bin", "", "", "data[1: train_1.bin and train_text_document.bin are not files of one set; "},
		{"a_train_1.bin a_train_old_2.bin", "", "", "data[1: unclear whether a_train_old_2.bin belongs to the split; " + rule},
		// Opening the files leaves out the array.
		{"train_1.bin train_1.top8.bin vocab.json", "train_1.bin train_1.top8.bin", "", ""},
		{"train.bin train.val.bin vocab.json", "train.bin", "", ""},
		{"train.bin ._train.bin ._val.bin", "train.bin", "", ""},
		{"train_1.bin ._train_1.bin .a_train_2.bin val_1.bin ._val_1.bin", "train_1.bin", "val_1.bin", ""},
		{".train_1.bin", "", "", "data[1 has neither train*.bin nor val*.bin: " + rule},
		{"train_1.txt", "", "", "data[1 has neither train*.bin nor val*.bin: " + rule},
	} {
		t.Chdir(t.TempDir())
		files := map[string]string{}
		for name := range strings.FieldsSeq(test.files) {
			files["data[1/"+name] = `{"kind": "ids", "vocab_size": 9, "splits": {"train": {"shards": [{"arrays": [{"file": "train_1.top8.bin"}, {"file": "train.val.bin"}]}]}}}`
		}
		testfiles.Write(t, files)
		c, err := (&Flags{Data: "data[1"}).Load()
		if test.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: error %v, want %s", test.files, err, test.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.files, err)
			continue
		}
		got := map[string]string{"train": "", "val": ""}
		for _, s := range decodePrinted(t, c).Splits {
			all, err := s.Files(nil)
			testfiles.NoError(t, err)
			for i, path := range all[0].Main {
				all[0].Main[i] = filepath.Base(path)
			}
			got[s.Name] = strings.Join(all[0].Main, " ")
		}
		if got["train"] != test.train || got["val"] != test.val {
			t.Errorf("%s: %v, want %s and %s", test.files, got, test.train, test.val)
		}
	}
	for _, url := range []string{"https://example.com/data", "S3://bucket/data", "hf://datasets/a/b"} {
		want := "--data " + url + ": URLs must begin with s3:// or gs://"
		if _, err := (&Flags{Data: url}).Load(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
