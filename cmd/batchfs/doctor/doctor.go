// Package doctor diagnoses why mounting or reading fails.
package doctor

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/cache/blocks"
	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/processes"
	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/printable"
)

// Command returns the command doctor.
func Command() *cobra.Command {
	var f config.Flags
	var mounted bool
	cmd := &cobra.Command{
		Use:   "doctor [MOUNTPOINT]",
		Short: "Diagnose why mounting or reading fails, and suggest fixes",
		Long: `Check everything that a mount needs and print one line for each check: first "FIX"
with each problem and how to fix it, then "ok" for the rest. The exit status is 1 if
anything needs a fix. Doctor changes nothing, and never waits for a mount that hangs.

With a configuration, doctor also checks its token files and its mountpoint, or
MOUNTPOINT. If there is a batchfs mount there, doctor checks that the user who made
it can read the token files, and that they have not changed since, and says where
the mount's log is.

With --mounted, doctor checks only the mount at MOUNTPOINT, and fails if nothing is
mounted there. Use it for liveness and readiness probes, as in Kubernetes.`,
		Example: `  batchfs doctor
  batchfs doctor /mnt/batches
  batchfs doctor --data data /mnt/batches
  batchfs doctor -c config.toml
  batchfs doctor --mounted /mnt/batches`,
		Args: cobra.MaximumNArgs(1),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
			d := newDoctor(cmd.OutOrStdout())
			switch {
			case !mounted:
				d.configure(&f)
			case len(args) == 0 || f.Config != "" || f.Data != "" || len(f.Sets) > 0:
				return errors.New("--mounted takes a MOUNTPOINT and no configuration")
			}
			if len(args) == 1 {
				d.config.Mountpoint = args[0]
			}
			if mounted {
				d.checkMounted()
			} else {
				d.checkAll()
			}
			return d.finish()
		}),
		ValidArgsFunction: command.DirCompletion,
	}
	f.Register(cmd)
	cmd.Flags().BoolVar(&mounted, "mounted", false, "check only the mount at MOUNTPOINT, and fail if there is none")
	return cmd
}

// A doctor checks a machine and prints its findings.
type doctor struct {
	out      io.Writer
	timeout  time.Duration // limit for each check, so that a dead disk does not hold up the others
	root     string        // root of the file system: "/" except in tests
	config   *config.Config
	problems int
	passed   bytes.Buffer // lines of the checks that passed
}

const checkTimeout = 5 * time.Second

func newDoctor(out io.Writer) *doctor {
	return &doctor{out: out, timeout: checkTimeout, root: "/", config: config.Default()}
}

// mayMount reports whether this process may mount without fusermount3.
func mayMount() bool {
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	return err == nil && caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// finish prints the checks that passed, below those that did not, and returns an error if there are
// any of the latter.
func (d *doctor) finish() error {
	if _, err := d.passed.WriteTo(d.out); err != nil || d.problems == 0 {
		return err
	}
	return fmt.Errorf("%d to fix", d.problems)
}

func (d *doctor) configure(f *config.Flags) {
	c := d.config
	if d.check("configuration", func() (_ string, err error) {
		if c, err = f.Load(); errors.Is(err, config.ErrNothingNamed) {
			c = d.config
			return "none, so no token files are checked; name some with -c or --data", nil
		}
		if err != nil {
			return "", withPermissionFix(err)
		}
		return fmt.Sprintf("%d split(s)", len(c.Splits)), nil
	}) {
		d.config = c
	}
}

func (d *doctor) checkMounted() {
	if d.check("mountpoint", func() (string, error) {
		m, _, err := mount.Containing(d.config.Mountpoint)
		if err != nil {
			return "", err
		}
		return Diagnose(m)
	}) {
		d.mountedSplits()
	}
}

func (d *doctor) checkAll() {
	m, _, _ := mount.FindContaining(d.config.Mountpoint)
	if m == nil || !m.HandedOver { // a handed-over mount is made by another process
		d.check("/dev/fuse", d.device)
		d.check("permission to mount", d.permissionToMount)
	}
	isWell := d.check("mountpoint", d.mountpoint)
	if d.config.Mountpoint != "" && m != nil {
		if isWell {
			d.mountedSplits()
			d.check("requests", func() (string, error) { return checkRequests(m) })
		}
		d.check("log", func() (string, error) { return describeLog(m), nil })
	}
	o := dataset.NewOpener(d.config)
	for _, s := range d.config.Splits {
		d.checkWithin(storageHint(s), "splits."+s.Name, func() (string, error) { return describeTokens(s, o) })
	}
	if d.config.Store.CacheDir != "" {
		d.check("block cache", func() (string, error) { return describeBlockCache(o.Remote.Blocks) })
	}
}

// check runs examine, prints its error or leaves its detail for finish, and reports whether all is
// well. The error must name the fix.
func (d *doctor) check(what string, examine func() (string, error)) (ok bool) {
	return d.checkWithin(onDisk, what, examine)
}

// Hints for storage that does not respond.
const (
	onDisk  = "the disk or file server seems to be stuck; dmesg may say why"
	inStore = "the store or the network seems to be down; check store.endpoint"
)

func storageHint(s *config.Split) string {
	if s.IsRemote() {
		return inStore
	}
	return onDisk
}

// checkWithin is like check, but explains a timeout with hint.
func (d *doctor) checkWithin(hint, what string, examine func() (string, error)) (ok bool) {
	var detail string
	ended := make(chan error, 1)
	go func() {
		finding, err := examine()
		detail = finding
		ended <- err
	}()
	var err error
	select {
	case err = <-ended:
	case <-time.After(d.timeout):
		err = errNoReply(d.timeout, hint)
	}
	if err == nil {
		printable.Fprintf(&d.passed, "ok   %s: %s\n", what, detail)
		return true
	}
	d.problems++
	printable.Fprintf(d.out, "FIX  %s: %s\n", what, strings.TrimLeft(strings.TrimPrefix(err.Error(), what), ": "))
	return false
}

func errNoReply(limit time.Duration, hint string) error {
	return fmt.Errorf("no answer in %v: %s", limit, hint)
}

func (d *doctor) inRoot(path string) string { return filepath.Join(d.root, path) }

func (d *doctor) device() (string, error) {
	fd, err := mount.OpenDevice(d.inRoot("dev/fuse"))
	if err != nil {
		return "", err
	}
	return "can be opened", unix.Close(fd)
}

func (d *doctor) permissionToMount() (string, error) {
	if err := mount.CheckAddressSpace(); err != nil {
		return "", err
	}
	if mayMount() {
		return "this user may mount", nil
	}
	if os.Geteuid() == 0 {
		return "", mount.ErrNoCapability
	}
	helper, err := mount.FindFusermount(d.inRoot("etc"))
	if err != nil {
		return "", err
	}
	return "through " + helper, mount.CheckPrivilege(helper)
}

func (d *doctor) mountpoint() (string, error) {
	path := d.config.Mountpoint
	if path == "" {
		return "none named", nil
	}
	if m, _, _ := mount.FindContaining(path); m != nil {
		return Diagnose(m)
	}
	abs, err := processes.CheckMountpoint(d.config, "")
	if err != nil {
		return "", err
	}
	if !mayMount() {
		if err := mount.CheckHelper(abs, d.inRoot("etc")); err != nil {
			return "", err
		}
	}
	return abs + " is an empty directory", nil
}

func (d *doctor) mountedSplits() {
	m, _, err := mount.Containing(d.config.Mountpoint)
	if err != nil {
		return // unmounted in the meantime
	}
	splits, err := SplitsOf(m)
	if err != nil && !lacksAccess(m, err) {
		d.check("mounted splits", func() (string, error) { return "", err })
	}
	for _, s := range splits {
		d.checkWithin(storageHint(s), "mounted "+s.Name, func() (string, error) { return ProbeSplit(m, s) })
	}
}

// lacksAccess reports whether err means that this process may not inspect the mount's supervisor.
func lacksAccess(m *mount.Mounted, err error) bool {
	return m.AllowOther && errors.Is(err, os.ErrPermission) || errors.Is(err, mount.ErrElsewhere)
}

// Diagnose describes a mount, or returns an error if it is stuck, dead or closed to this user. It
// touches the mount only if nothing else shows whether it is dead.
func Diagnose(m *mount.Mounted) (string, error) {
	err := m.CheckAlive()
	if errors.Is(err, mount.ErrElsewhere) && !m.IsDead() {
		return fmt.Sprintf("%s is mounted; %v", m.Mountpoint, mount.ErrElsewhere), nil
	}
	if err != nil {
		return "", fmt.Errorf("%s is dead: its supervisor, process %d, is gone; unmount it with: batchfs unmount %s", m.Mountpoint,
			m.Supervisor, printable.ShellArg(m.Mountpoint))
	}
	if err := m.CheckRunning(); err != nil {
		return "", err
	}
	euid := os.Geteuid()
	if euid != 0 && euid != m.Owner && !m.AllowOther {
		return "", fmt.Errorf("%s is mounted, but only user %d, who mounted it, may access it; "+
			"to let others in, mount with mount.allow_other = true (--set mount.allow_other=true)", m.Mountpoint, m.Owner)
	}
	if dir := closedAbove(m.Mountpoint); dir != "" {
		return "", fmt.Errorf("%s is mounted, but this user may not enter %s; as its owner, run: chmod a+x %s, or mount elsewhere",
			m.Mountpoint, dir, printable.ShellArg(dir))
	}
	shared, err := m.State()
	if lacksAccess(m, err) {
		return fmt.Sprintf("%s is mounted; only user %d, who mounted it, and root can see more", m.Mountpoint, m.Owner), nil
	}
	if err != nil {
		return "", err
	}
	defer shared.Close()
	detail, err := describeWorker(m.Mountpoint, shared)
	if err != nil {
		return "", err
	}
	if err := stuckSplits(m, shared.Unresponsive()); err != nil {
		return "", err
	}
	if euid != m.Owner && !m.AllowOther {
		detail += fmt.Sprintf("; only user %d may read it, unless it is mounted with mount.allow_other", m.Owner)
	}
	return detail, nil
}

// closedAbove returns the topmost directory above a path that this user may not enter, or "".
func closedAbove(path string) string {
	for i, c := range path {
		if c == '/' && i > 0 && errors.Is(unix.Access(path[:i], unix.X_OK), os.ErrPermission) {
			return path[:i]
		}
	}
	return ""
}

// describeWorker says which process serves a mount, or returns an error if it is stuck.
func describeWorker(mountpoint string, shared *state.Shared) (string, error) {
	who, detail := "its first worker", "its first worker is starting"
	if n := shared.Worker.Load(); n != 0 {
		who, detail = fmt.Sprintf("its worker, process %d,", n), fmt.Sprintf("served by process %d", n)
	}
	// The supervisor pings the worker every second.
	if silent := shared.SinceHeartbeat(); silent > state.StuckAfter {
		return "", fmt.Errorf("%s is stuck: %s has not answered for %v; if no other worker takes over soon: batchfs restart %s",
			mountpoint, who, silent.Round(time.Second), printable.ShellArg(mountpoint))
	}
	return mountpoint + " is mounted, " + detail, nil
}

// checkRequests returns an error if the last request of a sequence failed for a reason that a check
// of the token files does not show. It does not touch the mount.
func checkRequests(m *mount.Mounted) (string, error) {
	shared, err := m.State()
	if err != nil {
		return "unknown, because this user may not inspect the mount", nil
	}
	defer shared.Close()
	var failing []string
	for n := range shared.SequencesUsed() {
		if name, lastError := shared.TextsOf(n + 1); name != "" && shared.Failing(n+1) {
			failing = append(failing, fmt.Sprintf("%s fails, the last time with: %s", name, lastError))
		}
	}
	if len(failing) > 0 {
		return "", errors.New(strings.Join(failing, "; "))
	}
	return "none fails for another reason", nil
}

// describeLog says where the log of a mount is. If the mount is dead, nothing but the default path
// can be known. It does not touch the mount.
func describeLog(m *mount.Mounted) string {
	snapshot, err := dataset.SnapshotOf(m)
	switch {
	case err == nil && snapshot.Log != "":
		return snapshot.Log
	case err == nil:
		return fmt.Sprintf("standard error of process %d", m.Supervisor)
	case errors.Is(err, mount.ErrDead) && os.Geteuid() == m.Owner:
		path, pathErr := processes.DefaultLog(m.Mountpoint)
		if _, statErr := os.Stat(path); pathErr == nil && statErr == nil {
			return path + ", unless it was mounted with --log or without -d"
		}
	}
	return "unknown: " + err.Error()
}

// stuckSplits returns an error unless waiting is empty. That map holds how long each sequence has
// been waiting for its token files.
func stuckSplits(m *mount.Mounted, waiting map[string]time.Duration) error {
	if len(waiting) == 0 {
		return nil
	}
	hints := map[string]string{}
	splits, _ := SplitsOf(m) // without splits, as for another user, there are no hints
	for _, s := range splits {
		hints[s.Name] = storageHint(s)
	}
	var stuck []string
	for name, since := range waiting {
		split, _, _ := strings.Cut(name, "/")
		stuck = append(stuck, fmt.Sprintf("%s is stuck: its token files have not answered for %v: %s", name, since.Round(time.Second),
			cmp.Or(hints[split], onDisk)))
	}
	slices.Sort(stuck)
	return fmt.Errorf("%s. Other splits are not affected", strings.Join(stuck, "; "))
}

func describeTokens(s *config.Split, o *dataset.Opener) (string, error) {
	opened, err := o.OpenSplit(s)
	if errors.Is(err, os.ErrNotExist) && !s.IsRemote() {
		return "", fmt.Errorf("%w; to create token files from text, run batchfs prepare", err)
	}
	if err != nil {
		return "", withPermissionFix(err)
	}
	return opened.SizeSummary(), nil
}

// withPermissionFix adds to a permission error how to fix it.
func withPermissionFix(err error) error {
	var path *os.PathError
	if errors.Is(err, os.ErrPermission) && errors.As(err, &path) {
		mode := "a+r"
		if info, err := os.Stat(path.Path); err == nil && info.IsDir() {
			mode = "a+rx"
		}
		return fmt.Errorf("%w; as its owner, chmod %s %s and chmod a+x the directories above it", err, mode, printable.ShellArg(path.Path))
	}
	return err
}

func describeBlockCache(o blocks.Options) (string, error) {
	_, sets, err := blocks.Usage(o)
	if err != nil {
		return "", err
	}
	var all []string
	enough := int64(0)
	for _, s := range sets {
		if s.Live {
			all = append(all, s.String())
			enough = max(enough, s.Enough)
		}
	}
	text := strings.Join(all, "; ")
	if enough > 0 {
		return "", fmt.Errorf("%s: the cache is too small, so blocks are fetched again and again; set store.cache_bytes = %d", text, enough)
	}
	return cmp.Or(text, "no mount reads it"), nil
}
