package e2e

import (
	"syscall"
	"testing"
)

// Nobody is the user that has no rights.
const Nobody = 65534

// AsUser runs a command as another user, of one group, and returns all that it printed.
func AsUser(t testing.TB, uid, gid uint32, args ...string) (string, error) {
	cmd := Command(t, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
