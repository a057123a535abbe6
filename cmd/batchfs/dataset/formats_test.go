package dataset

import (
	"path/filepath"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// testdataPath returns the absolute path of cache/testdata.
func testdataPath(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../../../cache/testdata")
	must(t, err)
	return dir
}

// Typical mistakes get a helpful error.
func TestFilesThatPeopleTry(t *testing.T) {
	dir := testdataPath(t)
	t.Chdir(t.TempDir())
	testfiles.Write(t, map[string]string{
		"a.bin": strings.Repeat("ab", 100), "b.bin": strings.Repeat("ab", 50), "mask-a.bin": strings.Repeat("\x01", 100), "mask-b.bin": strings.Repeat("\x01", 49),
		"long-b.bin": strings.Repeat("\x01", 51), "swapped-a.bin": strings.Repeat("\x01", 50), "swapped-b.bin": strings.Repeat("\x01", 100),
		"pages.bin": strings.Repeat("\x01", 200), "odd": strings.Repeat("\x01", 151), "empty": "",
	})
	mask := func(files string) string {
		return "tokens = ['a.bin', 'b.bin']\n[[splits.a.arrays]]\nname = 'mask'\ndtype = 'uint8'\nfiles = " + files
	}
	for _, test := range []struct{ text, want string }{
		{"tokens = '" + dir + "/floats.npy'", dir + `/floats.npy holds float32 of shape [3], not tokens; set layout = "rows", or, if these are tokens, all of them whole numbers, rewrite them: numpy.save(FILE, a.reshape(-1).astype("uint32"))`},
		{"tokens = 'pages.bin'\ntoken_dtype = 'uint16'\nshape = [10]", abs(t, "pages.bin") + ` holds uint16 of shape [10], not tokens; set layout = "rows", or, if these are tokens, make a list of them: numpy.save(FILE, a.reshape(-1))`},
		{"tokens = '" + dir + "/big.npy'", dir + `/big.npy is big-endian (dtype ">u2")`},
		{"tokens = '" + dir + "/a1.npy'\ntoken_dtype = 'uint32'", dir + "/a1.npy: its numbers are uint16, according to the npy file itself, but token_dtype says uint32"},
		{"tokens = '" + dir + "/a_llmc.bin'\nvocab_size = 100000", "config.toml:7: splits.a.vocab_size: uint16 cannot hold the tokens of a vocabulary of 100000 in splits.a"},
		{"tokens = ['" + dir + "/a.bin', '" + dir + "/b1.npy']", dir + "/b1.npy: its format is npy, that of " + dir + "/a.bin is headerless; convert one of them"},
		{mask("['mask-a.bin', 'mask-b.bin']"), abs(t, "mask-b.bin") + " has 49 elements, but there are 50 in " + abs(t, "b.bin")},
		{mask("['mask-a.bin', 'long-b.bin']"), abs(t, "long-b.bin") + " has 51 elements, but there are 50 in " + abs(t, "b.bin")},
		{mask("['swapped-a.bin', 'swapped-b.bin']"), abs(t, "swapped-a.bin") + " has 50 elements, but there are 100 in " + abs(t, "a.bin")},
		{mask("'mask-a.bin'"), abs(t, "mask-a.bin") + " has 100 elements, but there are 150 in " + abs(t, "a.bin")},
		{"tokens = 'a.bin'\n[[splits.a.arrays]]\nname = 'mask'\nfiles = 'mask-a.bin'", abs(t, "mask-a.bin") + ` has no header that says its dtype; set dtype = "uint8"`},
		{mask("'odd'\nshape = [2]"), abs(t, "odd") + ": 151 bytes are not a whole number of elements of 2 bytes, uint8 of shape [2]"},
		{mask("'gone'"), abs(t, "gone") + ": no such file or directory"},
		{mask("'empty'"), abs(t, "empty") + " is empty"},
		{"tokens = 'a.bin'\ndocuments = true\neot = 65536", abs(t, "a.bin") + ": its tokens are uint16, which cannot be 65536; check eot"},
		{"tokens = 'a.bin'\ndocuments = true", "nothing says where the documents of " + abs(t, "a.bin") + ` end: eot = N says which token ends each document; documents = "files" makes each file one document; batchfs index FILE --eot N`},
	} {
		_, err := openHere(t, "[batch]\nbatch_size = 2\nblock_size = 4\n\n[splits.a]\n"+test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s:\n got %v\nwant %s", test.text, err, test.want)
		}
	}
}
