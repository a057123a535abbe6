package mount

import (
	"os"
	"path/filepath"
	"testing"
)

func TestUserAllowOther(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "fuse.conf")
	if userAllowOther(conf) {
		t.Error("allowed without the file")
	}
	for text, want := range map[string]bool{
		"": false, "#user_allow_other\n": false, "mount_max = 1000\n": false, "user_allow_others\n": false, "user allow_other": false,
		"user_allow_other": true, "mount_max = 1000\n  user_allow_other # for trainers\n": true,
	} {
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if userAllowOther(conf) != want {
			t.Errorf("%q: not %v", text, want)
		}
	}
}
