package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/cache/blocks"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs/mount"
)

func doctorCommand() *cobra.Command {
	var f config.Flags
	var mounted bool
	cmd := &cobra.Command{
		Use:   "doctor [MOUNTPOINT]",
		Short: "Say what keeps this machine from mounting, and what helps",
		Long: `Look at what a mount needs, and say of each thing whether it is as it should be: a line "ok", or a line "FIX" that says
what is wrong and what helps. The exit status is 1 if anything needs a fix. Nothing is changed.

With a configuration, its token files are looked at too, and its mountpoint, or MOUNTPOINT. Of a batchfs that is mounted there
it looks whether the token files are those that it serves, and can be read by the user that mounted.

With --mounted it looks at nothing but that, and fails if nothing is mounted there: for probes, as of Kubernetes. It never
waits for a mount that hangs.`,
		Example: `  batchfs doctor
  batchfs doctor /mnt/batches
  batchfs doctor --data data /mnt/batches
  batchfs doctor -c config.toml
  batchfs doctor --mounted /mnt/batches`,
		Args: cobra.MaximumNArgs(1),
		RunE: interruptible(func(cmd *cobra.Command, args []string) error {
			d := newDoctor(cmd.OutOrStdout())
			switch {
			case !mounted:
				d.configure(&f)
			case len(args) == 0 || f.Config != "" || f.Data != "" || len(f.Sets) > 0:
				return errors.New("--mounted takes a MOUNTPOINT, and no configuration")
			}
			if len(args) == 1 {
				d.config.Mountpoint = args[0]
			}
			if mounted {
				d.checkMounted()
			} else {
				d.checkAll()
			}
			if d.wrong > 0 {
				return fmt.Errorf("%d to fix", d.wrong)
			}
			return nil
		}),
		ValidArgsFunction: directories,
	}
	f.Register(cmd)
	cmd.Flags().BoolVar(&mounted, "mounted", false, "look only at the batchfs at MOUNTPOINT, which must be there")
	return cmd
}

// A doctor looks at a machine and prints findings.
type doctor struct {
	out    io.Writer
	limit  time.Duration // of one look, so that the others happen behind a dead disk or server
	root   string        // of the machine's files: "/" except in tests
	config *config.Config
	wrong  int // findings that need a fix
}

const checkLimit = 5 * time.Second

func newDoctor(out io.Writer) *doctor {
	return &doctor{out: out, limit: checkLimit, root: "/", config: config.Default()}
}

// mayMount says whether this process may mount without a helper.
func mayMount() bool {
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	return err == nil && caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

func (d *doctor) configure(f *config.Flags) {
	c := d.config
	if d.check("configuration", func() (_ string, err error) {
		if c, err = f.Load(); errors.Is(err, config.ErrNothingNamed) {
			c = d.config
			return "none, so no token files are looked at; -c or --data names some", nil
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d split(s)", len(c.Splits)), nil
	}) {
		d.config = c
	}
}

func (d *doctor) checkMounted() {
	if d.check("mountpoint", func() (string, error) {
		m, _, err := requireMount(d.config.Mountpoint)
		if err != nil {
			return "", err
		}
		return diagnose(m)
	}) {
		d.mountedSplits()
	}
}

func (d *doctor) checkAll() {
	m, _, _ := findMount(d.config.Mountpoint)
	if m == nil || !m.HandedOver { // else another process has mounted
		d.check("/dev/fuse", d.device)
		d.check("right to mount", d.right)
	}
	d.check("kernel", d.kernel)
	if d.check("mountpoint", d.mountpoint) && d.config.Mountpoint != "" && m != nil {
		d.mountedSplits()
		d.check("access", func() (string, error) { return access(m) })
	}
	o := dataset.NewOpener(d.config)
	for _, s := range d.config.Splits {
		d.checkWithin(storageHint(s), "splits."+s.Name, func() (string, error) { return tokensOf(s, o) })
	}
	if d.config.Store.CacheDir != "" {
		d.check("block cache", func() (string, error) { return blockCache(o.Remote.Blocks) })
	}
	d.check("memory", d.memory)
}

// check prints the finding of examine: a detail, or an error that says what is wrong and what
// helps.
func (d *doctor) check(what string, examine func() (string, error)) (ok bool) {
	return d.checkWithin(onDisk, what, examine)
}

// What may not answer, and what helps.
const (
	onDisk  = "the disk or the server behind it seems to be stuck; dmesg may say why"
	inStore = "its store, or the network on the way there, seems to be down; look at store.endpoint"
)

// storageHint is what lies behind the files of a split.
func storageHint(s *config.Split) string {
	if s.IsRemote() {
		return inStore
	}
	return onDisk
}

func (d *doctor) checkWithin(behind, what string, examine func() (string, error)) (ok bool) {
	var detail string
	ended := make(chan error, 1)
	go func() {
		said, err := examine()
		detail = said
		ended <- err
	}()
	var err error
	select {
	case err = <-ended:
	case <-time.After(d.limit):
		err = errNoReply(d.limit, behind)
	}
	if err == nil {
		printf(d.out, "ok   %s: %s\n", what, detail)
		return true
	}
	d.wrong++
	printf(d.out, "FIX  %s: %s\n", what, strings.TrimLeft(strings.TrimPrefix(err.Error(), what), ": "))
	return false
}

func errNoReply(limit time.Duration, behind string) error {
	return fmt.Errorf("no answer in %v, %s", limit, behind)
}

func (d *doctor) at(path string) string { return filepath.Join(d.root, path) }

func (d *doctor) device() (string, error) {
	fd, err := mount.OpenDevice(d.at("dev/fuse"))
	if err != nil {
		return "", err
	}
	return "can be opened", unix.Close(fd)
}

func (d *doctor) right() (string, error) {
	if mayMount() {
		return "this user has it", nil
	}
	if os.Geteuid() == 0 {
		return "", errors.New("root has none in this container; give it that: docker run --device /dev/fuse --cap-add SYS_ADMIN")
	}
	helper, err := mount.FindFusermount(d.at("etc"))
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(helper); err == nil && info.Mode()&os.ModeSetuid == 0 {
		return "", fmt.Errorf("%s does not run as root: as root, chmod u+s %s", helper, helper)
	}
	return "through " + helper, nil
}

func (d *doctor) kernel() (string, error) {
	text, err := os.ReadFile(d.at("proc/sys/kernel/osrelease"))
	if err != nil {
		return "", err
	}
	release := strings.TrimSpace(string(text))
	var major, minor int
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	if major < 6 || major == 6 && minor < 9 {
		return release + "; before 6.9 readers get an error, should the process that serves them die, and a new mount", nil
	}
	return release + "; should the process that serves die, readers do not notice", nil
}

func (d *doctor) mountpoint() (string, error) {
	path := d.config.Mountpoint
	if path == "" {
		return "none named", nil
	}
	m, _, err := findMount(path)
	if err != nil {
		return "", err
	}
	if m != nil {
		return diagnose(m)
	}
	abs, err := checkMountpoint(d.config, "")
	if err != nil {
		return "", err
	}
	if err := unix.Access(abs, unix.W_OK); err != nil && !mayMount() {
		return "", fmt.Errorf("%s: fusermount3 mounts only where the user may write; as root, chown %d %s", path, os.Getuid(), path)
	}
	return abs + " is an empty directory", nil
}

func (d *doctor) mountedSplits() {
	m, _, err := requireMount(d.config.Mountpoint)
	if err != nil {
		return // it was unmounted meanwhile
	}
	splits, err := splitsOf(m)
	if err != nil && !isForeign(m, err) {
		d.check("mounted splits", func() (string, error) { return "", err })
	}
	for _, s := range splits {
		d.checkWithin(storageHint(s), "mounted "+s.Name, func() (string, error) { return probeSplit(m, s) })
	}
}

// access says how token files were read under remap in a mount, and what is faster. It does not touch the mount.
func access(m *mount.Mounted) (string, error) {
	shared, err := m.State()
	if err != nil {
		return "not known to this user", nil
	}
	defer shared.Close()
	return remapsInWords(shared.Remaps.Mapped.Load(), shared.Remaps.Busy.Load()), nil
}

func remapsInWords(mapped, busy int64) string {
	words := fmt.Sprintf(`of %d reads under access = "remap", %d used pread, because another one had a file mapped`, mapped+busy, busy)
	if advice := remapAdvice(mapped, busy); advice != "" {
		words += "; " + advice + ` has all of them do so, which is faster with several readers`
	}
	return words
}

// remapAdvice returns the setting that is faster when many reads under access = "remap" find another
// read mapping the file, or an empty string.
func remapAdvice(mapped, busy int64) string {
	if busy > mapped/9 {
		return `memory.access = "pread"`
	}
	return ""
}

// isForeign says whether err means that this process may not look into the memory of a mount's supervisor.
func isForeign(m *mount.Mounted, err error) bool {
	return m.AllowOther && errors.Is(err, os.ErrPermission) || errors.Is(err, mount.ErrElsewhere)
}

// diagnose tells a mount that serves from one that is stuck or dead. It does not touch the mount, unless nothing else tells.
func diagnose(m *mount.Mounted) (string, error) {
	err := m.CheckAlive()
	if errors.Is(err, mount.ErrElsewhere) && !m.IsDead() {
		return fmt.Sprintf("%s is mounted; %v", m.Mountpoint, err), nil
	}
	if err != nil {
		return "", fmt.Errorf("%s is dead: process %d, which kept the mount, is gone; free it with: batchfs unmount %[1]s", m.Mountpoint, m.Supervisor)
	}
	if err := checkRunning(m); err != nil {
		return "", err
	}
	euid := os.Geteuid()
	if euid != 0 && euid != m.Owner && !m.AllowOther {
		return "", fmt.Errorf("%s is mounted, and only user %d, who mounted it, may enter; "+
			"to let others, that user mounts it with mount.allow_other = true (--set mount.allow_other=true)", m.Mountpoint, m.Owner)
	}
	shared, err := m.State()
	if isForeign(m, err) {
		return fmt.Sprintf("%s is mounted; only user %d, who mounted it, and root can look closer", m.Mountpoint, m.Owner), nil
	}
	if err != nil {
		return "", fmt.Errorf("%s is mounted: %w", m.Mountpoint, err)
	}
	defer shared.Close()
	if silent := shared.SinceHeartbeat(); silent > 3*time.Second { // its supervisor pings a worker every second
		return "", fmt.Errorf("%s is stuck: process %d, which serves, has not answered for %v; another takes its place, or else: batchfs restart %[1]s",
			m.Mountpoint, shared.Worker.Load(), silent.Round(time.Second))
	}
	if err := stuckSplits(m, shared.Waiting()); err != nil {
		return "", err
	}
	detail := fmt.Sprintf("%s is mounted, served by process %d", m.Mountpoint, shared.Worker.Load())
	for n := range shared.SequencesUsed() {
		if q := &shared.Sequences[n+1]; q.Used() && q.Errors.Load() > 0 {
			detail += fmt.Sprintf("; %d requests of %s failed, the last one so: %s", q.Errors.Load(), q.Name(), q.LastError())
		}
	}
	if euid != m.Owner && !m.AllowOther {
		detail += fmt.Sprintf("; only user %d may read it, without mount.allow_other", m.Owner)
	}
	return detail, nil
}

// checkRunning returns an error if a signal such as SIGSTOP has stopped the supervisor of a mount.
// The supervisor must be alive.
func checkRunning(m *mount.Mounted) error {
	if !m.IsStopped() {
		return nil
	}
	return fmt.Errorf("%s is stuck: process %d, which keeps the mount, is stopped; continue it with: kill -CONT %[2]d", m.Mountpoint, m.Supervisor)
}

// stuckSplits says which sequences have waited for their token files for how long, and what lies behind those.
func stuckSplits(m *mount.Mounted, waiting map[string]time.Duration) error {
	if len(waiting) == 0 {
		return nil
	}
	of := map[string]string{}
	splits, _ := splitsOf(m) // which another user may not know
	for _, s := range splits {
		of[s.Name] = storageHint(s)
	}
	var stuck []string
	for name, since := range waiting {
		split, _, _ := strings.Cut(name, "/")
		stuck = append(stuck, fmt.Sprintf("%s is stuck: its token files have not answered for %v: %s", name, since.Round(time.Second), cmp.Or(of[split], onDisk)))
	}
	slices.Sort(stuck)
	return fmt.Errorf("%s. Other splits are not affected", strings.Join(stuck, "; "))
}

func tokensOf(s *config.Split, o *dataset.Opener) (string, error) {
	opened, err := o.OpenSplit(s)
	if errors.Is(err, os.ErrNotExist) && !s.IsRemote() {
		return "", fmt.Errorf("%w; batchfs prepare makes token files of text", err)
	}
	if err != nil {
		return "", withPermission(err)
	}
	return opened.Counted(), nil
}

// withPermission says what helps where a file may not be read.
func withPermission(err error) error {
	var path *os.PathError
	if errors.Is(err, os.ErrPermission) && errors.As(err, &path) {
		return fmt.Errorf("%w; as its owner, chmod a+r %s, and a+x the directories above it", err, path.Path)
	}
	return err
}

func blockCache(o blocks.Options) (string, error) {
	_, sets, err := blocks.Usage(o)
	if err != nil {
		return "", err
	}
	var all []string
	enough := int64(0)
	for _, s := range sets {
		if s.Live {
			all = append(all, workingSetInWords(s))
			enough = max(enough, s.Enough)
		}
	}
	text := strings.Join(all, "; ")
	if enough > 0 {
		return "", fmt.Errorf("%s: blocks without room are fetched again and again; set store.cache_bytes = %d", text, enough)
	}
	return cmp.Or(text, "no mount reads it"), nil
}

func (d *doctor) memory() (string, error) {
	const footprint = 64 << 20 // of the processes of a mount, besides the budget
	need := d.config.Memory.Budget + footprint
	have := d.available()
	if have < need {
		return "", fmt.Errorf("%d MiB are free here, and batchfs may take %d MiB; lower that, as with --set memory.budget=%d",
			have>>20, need>>20, max(have-footprint, 32<<20)/2)
	}
	return fmt.Sprintf("%d MiB are free here, and batchfs takes %d MiB at most", have>>20, need>>20), nil
}

// available returns the bytes of memory that the machine has available, or less where a control group has less left.
func (d *doctor) available() int64 {
	size := int64(math.MaxInt64)
	if n, ok := d.number("proc/meminfo", "MemAvailable:"); ok {
		size = n << 10
	}
	text, _ := os.ReadFile(d.at("proc/self/cgroup"))
	for line := range strings.Lines(string(text)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		for ; ok; group = filepath.Dir(group) {
			dir := "sys/fs/cgroup" + group
			if limit, limited := d.number(dir+"/memory.max", ""); limited {
				used, _ := d.number(dir+"/memory.current", "")
				// The kernel frees page cache that was not used lately before the group runs out of memory.
				cached, _ := d.number(dir+"/memory.stat", "inactive_file")
				size = min(size, max(limit-max(used-cached, 0), 0))
			}
			ok = group != "/"
		}
	}
	return size
}

// number returns the number behind a name at the beginning of a line.
func (d *doctor) number(file, name string) (n int64, ok bool) {
	text, _ := os.ReadFile(d.at(file))
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, name); found {
			if read, _ := fmt.Sscan(rest, &n); read == 1 {
				return n, true
			}
		}
	}
	return 0, false
}
