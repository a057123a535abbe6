package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// --data takes the files that hold a split, and no others that look like them.
func TestData(t *testing.T) {
	const rule = "--data takes train.bin, or else train with a number"
	for _, test := range []struct{ files, train, val, err string }{
		{"train.bin val.bin", "train.bin", "val.bin", ""},
		{"train.bin train_old.bin train.tmp.bin train_1.bin train.bin.bak val.bin.part", "train.bin", "", ""},
		{"train_000002.bin train_000001.bin val_000000.bin train_000003.bin.part", "train_000001.bin train_000002.bin", "val_000000.bin", ""},
		{"train_000001.bin train-00001-of-00002.bin", "", "", "data[1: are train-00001-of-00002.bin and train_000001.bin files of one set?"},
		{"train-00000-of-00002.bin train-00001-of-00002.bin train_old.bin", "train-00000-of-00002.bin train-00001-of-00002.bin", "", ""},
		{"train0.bin train10.bin train1.bin training.bin", "train0.bin train1.bin train10.bin", "", ""},
		{"val.bin train_old.bin", "", "val.bin", ""},
		{"train_old.bin val.tmp.bin", "", "", `data[1: ["train_old.bin" "val.tmp.bin"]: ` + rule},
		{"train_1.bin train_old_2.bin", "", "", "data[1: is train_old_2.bin to be served, too? " + rule},
		{"train_1.txt", "", "", "data[1 has neither train*.bin nor val*.bin; batchfs prepare TEXT --out data[1 makes them"},
	} {
		t.Chdir(t.TempDir())
		files := map[string]string{}
		for name := range strings.FieldsSeq(test.files) {
			files["data[1/"+name] = ""
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
		got := map[string]string{}
		for _, s := range c.Splits {
			all, err := s.Files()
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, path := range AllFiles(all) {
				names = append(names, filepath.Base(path))
			}
			got[s.Split] = strings.Join(names, " ")
		}
		want := map[string]string{}
		for split, names := range map[string]string{"train": test.train, "val": test.val} {
			if names != "" {
				want[split] = names
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", test.files, got, want)
		}
	}
}
