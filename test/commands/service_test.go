package commands

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// A service manager is notified when batches can be read, and when the mount begins to end.
func TestNotify(t *testing.T) {
	t.Parallel()
	config, want := e2e.SmallConfig(t, 1)
	address := net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	socket := e2e.Must(net.ListenUnixgram(address.Net, &address))(t)
	defer socket.Close()
	hear := func(want string) {
		t.Helper()
		message := make([]byte, 1000)
		socket.SetReadDeadline(testwait.Deadline(t))
		if n, err := socket.Read(message); err != nil || string(message[:n]) != want {
			t.Fatalf("notification: error %v, %q, want %s", err, message[:n], want)
		}
	}
	dir := t.TempDir()
	cmd := exec.Command(e2e.Batchfs, "mount", "-c", config, dir)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+address.Name)
	m := e2e.StartMount(t, dir, cmd)
	hear("READY=1")
	e2e.Equal(t, "batch 0", e2e.FileDigest(t, m, "train/next"), want[0])
	m.Cmd.Process.Signal(syscall.SIGTERM)
	hear("STOPPING=1")
}

func readUnit(t *testing.T) (service, store string) {
	t.Helper()
	return string(e2e.Content(t, "../examples/batchfs.service")), string(e2e.Content(t, "../examples/batchfs.service.d/store.conf"))
}

// systemd accepts the unit, and other processes can see its mount. Only with the drop-in may it use
// the network.
func TestUnit(t *testing.T) {
	t.Parallel()
	service, store := readUnit(t)
	namespace := regexp.MustCompile(`(?m)^(Private|Protect|Dynamic|Bind|Root|Temporary|Inaccessible|ReadOnly|ReadWrite|NoExec|Mount)\w+=`)
	e2e.Equal(t, "a setting that gives the service its own mount namespace", namespace.FindString(service+store), "")
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip(err)
	}
	const program = "/usr/local/bin/batchfs"
	e2e.Equal(t, "occurrences of "+program, strings.Count(service, program), 3)
	file := e2e.Write(t, filepath.Join(t.TempDir(), "batchfs.service"), []byte(strings.ReplaceAll(service, program, e2e.PlainBatchfs)))
	for _, network := range []bool{false, true} {
		if network {
			e2e.NoError(t, os.Mkdir(file+".d", 0o755))
			e2e.Write(t, file+".d/store.conf", []byte(store))
		}
		if stdout, stderr, err := e2e.Try(t, "systemd-analyze", "verify", file); err != nil || stdout+stderr != "" {
			t.Errorf("systemd-analyze verify: error %v, output %q, want none", err, stdout+stderr)
		}
		out, _, err := e2e.Try(t, "systemd-analyze", "security", "--offline=true", "--json=short", file)
		if err != nil {
			t.Skip("systemd-analyze cannot judge a file") // needs systemd 251
		}
		for _, setting := range []string{"RestrictAddressFamilies_AF_INET_INET6", "IPAddressDeny"} {
			if restricted := regexp.MustCompile(`"set":true,[^}]*"json_field":"` + setting + `"`).MatchString(out); restricted == network {
				t.Errorf("with the drop-in for stores %v, %s restricts the network %v, want the opposite", network, setting, restricted)
			}
		}
	}
}

func settingWords(text, name string) []string {
	var words []string
	for _, match := range regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(text, -1) {
		words = append(words, strings.Fields(match[1])...)
	}
	return words
}

// limitCapabilities returns a command prefix that limits a program to the capabilities of a unit.
func limitCapabilities(t *testing.T, unit string) []string {
	t.Helper()
	if _, err := exec.LookPath("setpriv"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and setpriv")
	}
	set := "-all"
	for _, name := range settingWords(unit, "CapabilityBoundingSet") {
		set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	return []string{"setpriv", "--no-new-privs", "--bounding-set", set}
}

// The capabilities that the unit allows root are sufficient.
func TestUnitsCapabilities(t *testing.T) {
	t.Parallel()
	service, _ := readUnit(t)
	words := append(limitCapabilities(t, service), e2e.Batchfs)
	file := e2e.WriteTokens(t, filepath.Join(t.TempDir(), "train.bin"), 60_000, 2)
	e2e.NoError(t, os.Chmod(file, 0))
	e2e.NoError(t, os.Chown(file, e2e.Nobody, e2e.Nobody))
	m := e2e.MountProgram(t, exec.Command(words[0], words[1:]...), "--data", filepath.Dir(file))
	e2e.Read(t, "read", m.Path("train/next"))
}

// A store can be read with the environment, capabilities, address families and cache directory of
// the unit and its drop-in, but not with the address families of the unit alone.
func TestUnitReadsStore(t *testing.T) {
	t.Parallel()
	e2e.SkipIfShort(t)
	e2e.NeedFUSE(t)
	service, store := readUnit(t)
	b, home, cacheDir := e2e.NewBucket(t), t.TempDir(), filepath.Join(t.TempDir(), "batchfs")
	b.Put(t, "train.bin", e2e.RandomBytes(3*e2e.StoreBlock))
	e2e.Write(t, home+"/.aws/credentials", fmt.Appendf(nil, "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", e2e.StoreKey, e2e.StoreSecret))
	e2e.Equal(t, "the environment", fmt.Sprint(settingWords(store, "Environment")), "[HOME=/root]")
	e2e.Equal(t, "the cache directory", fmt.Sprint(settingWords(store, "CacheDirectory")), "[batchfs]")
	mode := e2e.Must(strconv.ParseUint(settingWords(store, "CacheDirectoryMode")[0], 8, 32))(t)
	e2e.NoError(t, os.Mkdir(cacheDir, os.FileMode(mode)))
	within := func(families []string) *exec.Cmd {
		return exec.Command("env", slices.Concat([]string{"-i", "PATH=" + os.Getenv("PATH"), "HOME=" + home, "SSL_CERT_FILE=" + os.Getenv("SSL_CERT_FILE"), e2e.Python, "clients/families.py",
			strings.Join(families, " ")}, limitCapabilities(t, service), []string{e2e.Batchfs})...)
	}
	args := []string{"-c", b.Config(t, "s3://bucket/train.bin", ""), "--set", "store.cache_dir=" + cacheDir}

	families := settingWords(service, "RestrictAddressFamilies")
	without := slices.Concat(within(families).Args, []string{"mount", "--set", "mount.timeout=3s", t.TempDir()}, args)
	if _, stderr, err := e2e.Try(t, without...); err == nil || !strings.Contains(stderr, "address family not supported") {
		t.Errorf("mounting without the drop-in: error %v, %s\nwant that the address family is not supported", err, stderr)
	}
	m := e2e.MountProgram(t, within(append(families, settingWords(store, "RestrictAddressFamilies")...)), args...)
	e2e.Read(t, "read", m.Path("train/next"))
	if blocks, _ := filepath.Glob(cacheDir + "/*/[0-9]*"); len(blocks) == 0 {
		t.Error("the cache directory has no block")
	}
}

// With the address families of the unit, metrics can be served only after those that the docs name
// are added.
func TestUnitServesMetrics(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	service, _ := readUnit(t)
	docs := string(e2e.Content(t, "../docs/deploy.md"))
	config, _ := e2e.SmallConfig(t, 1)
	within := func(families []string) *exec.Cmd {
		return exec.Command(e2e.Python, "clients/families.py", strings.Join(families, " "), e2e.Batchfs)
	}
	families, listen := settingWords(service, "RestrictAddressFamilies"), []string{"-c", config, "--set", "mount.metrics_listen=127.0.0.1:0"}
	added := settingWords(docs, "RestrictAddressFamilies")
	e2e.CheckFails(t, "RestrictAddressFamilies="+strings.Join(added, " "), slices.Concat(within(families).Args, []string{"mount", t.TempDir()}, listen)...)
	e2e.Read(t, "read", e2e.MountProgram(t, within(append(families, added...)), listen...).Path("train/next"))
}
