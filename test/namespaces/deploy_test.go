package namespaces

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// A container holds the fields of a container that tests check.
type container struct {
	Name, Image     string
	Command, Args   []string
	StartupProbe    probe
	ReadinessProbe  probe
	SecurityContext struct {
		Privileged, AllowPrivilegeEscalation *bool
		Capabilities                         struct{ Drop []string }
	}
	VolumeMounts []struct{ Name, MountPath, MountPropagation string }
}

type probe struct {
	Exec                            struct{ Command []string }
	PeriodSeconds, FailureThreshold int
}

// A podSpec describes a pod, or the pod template of a workload.
type podSpec struct {
	InitContainers, Containers []container
	Volumes                    []struct{ Name string }
	Tolerations                []struct{ Key, Operator, Effect string }
}

// manifests returns all pods and configurations, keyed by kind and name.
func manifests(t *testing.T) (pods map[string]podSpec, configs map[string]string) {
	t.Helper()
	files := e2e.Must(filepath.Glob("../deploy/kubernetes/*.yaml"))(t)
	var objects []struct {
		Kind     string
		Metadata struct{ Name string }
		Data     map[string]string
		Spec     struct {
			podSpec
			UpdateStrategy struct{ Type string }
			Template       struct{ Spec podSpec }
		}
	}
	e2e.NoError(t, json.Unmarshal([]byte(e2e.Run(t, append([]string{e2e.Install(t, "kubernetes", "k8s.io/api", ".")}, files...)...)), &objects))
	pods, configs = map[string]podSpec{}, map[string]string{}
	for _, o := range objects {
		name := o.Kind + "/" + o.Metadata.Name
		if o.Kind == "DaemonSet" && o.Spec.UpdateStrategy.Type != "OnDelete" {
			t.Errorf("%s has update strategy %s, want OnDelete: to replace a pod ends the runs on its node", name, o.Spec.UpdateStrategy.Type)
		}
		switch {
		case o.Kind == "ConfigMap":
			configs[name] = o.Data["config.toml"]
		case len(o.Spec.Containers) > 0:
			pods[name] = o.Spec.podSpec
		default:
			pods[name] = o.Spec.Template.Spec
		}
	}
	return pods, configs
}

// The API server would accept the manifests, and containers have only the privileges that they
// need.
func TestManifests(t *testing.T) {
	e2e.SkipIfShort(t)
	pods, configs := manifests(t)
	if len(pods) != 5 || len(configs) != 3 {
		t.Fatalf("the manifests have %d pods and %d configurations, want 5 and 3", len(pods), len(configs))
	}
	for name, config := range configs {
		// Without shuffle_block, every node fetches the whole corpus.
		e2e.Contains(t, name, config, "shuffle_block")
		file := e2e.Write(t, filepath.Join(t.TempDir(), "config.toml"), config)
		tokens := e2e.WriteTokens(t, filepath.Join(t.TempDir(), "train.bin"), 60_000, 2)
		e2e.Run(t, e2e.PlainBatchfs, "cat", "train", "-c", file, "--set", "splits.train.tokens="+tokens, "--set", "store.cache_dir="+t.TempDir())
	}
	var fleet struct {
		Seconds float64 `json:"fleet_mount_seconds"`
	}
	e2e.NoError(t, json.Unmarshal([]byte(e2e.Run(t, e2e.PlainBatchfs, "plan", "--tokens", "15T", "--hosts", "512", "--gpus", "8", "--step", "1s", "--json",
		"--set", "batch.order=shuffle", "--set", "batch.shuffle_block=64MiB")), &fleet))
	for name, pod := range pods {
		gpu := struct{ Key, Operator, Effect string }{"nvidia.com/gpu", "Exists", "NoSchedule"}
		if !slices.Contains(pod.Tolerations, gpu) && name != "Job/prepare" {
			t.Errorf("%s lacks the toleration %v, so it does not run on nodes with GPUs", name, gpu)
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			propagates := false
			for _, v := range c.VolumeMounts {
				if !slices.ContainsFunc(pod.Volumes, func(volume struct{ Name string }) bool { return volume.Name == v.Name }) {
					t.Errorf("%s: %s mounts the volume %s, which is not defined", name, c.Name, v.Name)
				}
				propagates = propagates || v.MountPropagation == "Bidirectional"
			}
			for _, words := range [][]string{slices.Concat(c.Command, c.Args), c.StartupProbe.Exec.Command, c.ReadinessProbe.Exec.Command} {
				if strings.HasSuffix(c.Image, "/batchfs:latest") && len(words) > 0 {
					batchfs := words[slices.Index(words, "/usr/local/bin/batchfs")+1:]
					checkFlags(t, batchfs[0], batchfs[1:])
				}
			}
			rights := c.SecurityContext
			privileged := rights.Privileged != nil && *rights.Privileged
			confined := rights.AllowPrivilegeEscalation != nil && !*rights.AllowPrivilegeEscalation && slices.Equal(rights.Capabilities.Drop, []string{"ALL"})
			if propagates != privileged || privileged == confined {
				t.Errorf("%s: %s propagates mounts: %v, privileged: %v, confined: %v; want the first two equal, and the last their opposite", name, c.Name, propagates, privileged, confined)
			}
			if path := strings.Join(c.Command, " "); strings.Contains(path, "rank=") && !strings.Contains(path, "local_world=") {
				t.Errorf("%s: %s sets rank without local_world: %s", name, c.Name, path)
			}
			if p := c.StartupProbe; len(p.Exec.Command) > 0 && float64(p.PeriodSeconds*p.FailureThreshold) < fleet.Seconds {
				t.Errorf("%s: the startup probe of %s gives up after %d s, want at least the %.0f s that a mount takes", name, c.Name, p.PeriodSeconds*p.FailureThreshold, fleet.Seconds)
			}
			for _, p := range []probe{c.StartupProbe, c.ReadinessProbe} {
				if command := p.Exec.Command; len(command) > 0 {
					if mountpoint := c.Args[len(c.Args)-1]; !slices.Equal(command, []string{"/usr/local/bin/batchfs", "doctor", "--mounted", mountpoint}) {
						t.Errorf("%s: %s mounts %s, want a probe of that, not %s", name, c.Name, mountpoint, command)
					}
				}
			}
		}
	}
}

// checkFlags checks that a subcommand takes the flags among the words of a command.
func checkFlags(t *testing.T, subcommand string, words []string) {
	t.Helper()
	help := strings.ReplaceAll(e2e.Run(t, e2e.PlainBatchfs, subcommand, "--help"), ",", " ")
	for _, word := range words {
		if flag := regexp.MustCompile(`^--?[a-z][a-z-]*`).FindString(word); flag != "" {
			e2e.Contains(t, "the help of "+subcommand, help, " "+flag+" ")
		}
	}
}

// The flags of commands and the keys of config.toml that the files of deploy name, also in
// comments, exist.
func TestNamesInDeploy(t *testing.T) {
	t.Parallel()
	files := strings.Fields(e2e.Run(t, "find", "../deploy", "../examples/batchfs.service", "../examples/batchfs.service.d", "-type", "f"))
	command := regexp.MustCompile(`\bbatchfs ([a-z]+)((?:[ \t]+[^\s|;&)'"` + "`" + `]+|[ \t]+"[^"]*")*)`)
	key, config := regexp.MustCompile(`\b(?:batch|log|memory|mount|store)\.([a-z_]+)\b`), e2e.ReadPage(t, "config.toml")
	found := 0
	for _, file := range files {
		text := strings.ReplaceAll(string(e2e.Content(t, file)), "\\\n", "")
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[2], " -") {
				checkFlags(t, m[1], strings.Fields(m[2]))
				found++
			}
		}
		for _, m := range key.FindAllStringSubmatch(text, -1) {
			isFile := m[0] == "store.conf" || m[0] == "store.env"
			if !isFile && !regexp.MustCompile(`(?m)^(# )?`+m[1]+` = `).MatchString(config) {
				t.Errorf("%s names %s, which is no key of config.toml", file, m[0])
			}
		}
	}
	if found < 10 {
		t.Errorf("the files %s have %d commands with flags, want 10 at least", files, found)
	}
}

// The program runs in the image with a read-only root, as on a node. The probe fails until batches
// can be read.
func TestImage(t *testing.T) {
	e2e.SkipIfShort(t)
	needNamespaces(t)
	e2e.NeedRoot(t, "only root may change the root directory")
	text := e2e.Content(t, "../deploy/Dockerfile")
	dockerfile := string(text)
	module := e2e.Content(t, "../go.mod")
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(module))[1]
	e2e.Contains(t, "the Dockerfile", dockerfile, "FROM golang:"+version+" AS build\n")

	root := t.TempDir()
	for _, copied := range regexp.MustCompile(`(?m)^COPY --from=build (\S+) (\S+)$`).FindAllStringSubmatch(dockerfile, -1) {
		e2e.NoError(t, os.MkdirAll(filepath.Dir(root+copied[2]), 0o755))
		if copied[1] == "/batchfs" {
			build := regexp.MustCompile(`(?m)^RUN (make build PROGRAM=)/batchfs$`).FindStringSubmatch(dockerfile)
			e2e.RunJob(t, "sh", "-c", "cd .. && env -u GOFLAGS "+build[1]+root+copied[2])
		} else {
			e2e.Write(t, root+copied[2], "")
		}
	}
	linked := func(program string) string {
		return strings.Join(regexp.MustCompile(`(?m)^\t(?:dep\t|build\t(?:-tags|CGO_ENABLED)=).*$`).FindAllString(e2e.Run(t, "go", "version", "-m", program), -1), "\n")
	}
	e2e.Equal(t, "the modules and the settings of the image's program", linked(root+"/usr/local/bin/batchfs"), linked(e2e.PlainBatchfs))
	program := e2e.Must(elf.Open(root + "/usr/local/bin/batchfs"))(t)
	defer program.Close()
	if slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("the program of the image is linked dynamically")
	}

	pods, configs := manifests(t)
	batchfs := pods["DaemonSet/batchfs"].Containers[0]
	config := regexp.MustCompile(`s3://[^"]+`).ReplaceAllString(configs["ConfigMap/batchfs"], "/etc/batchfs/train.bin")
	e2e.Write(t, root+"/etc/batchfs/config.toml", []byte(config))
	e2e.WriteTokens(t, root+"/etc/batchfs/train.bin", 60_000, 2)
	for _, dir := range []string{"proc", "dev", "batches", "var/cache/batchfs"} {
		e2e.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for _, device := range []string{"fuse", "null"} { // every container has /dev/null
		e2e.Write(t, root+"/dev/"+device, "")
	}
	const node = `
		root=$0 probe=$1; shift
		mount --bind "$root" "$root"
		mount -t proc proc "$root/proc"
		for device in fuse null; do mount --bind /dev/$device "$root/dev/$device"; done
		mount -t tmpfs batches "$root/batches"
		mkdir "$root/batches/mnt"
		mount -o remount,bind,ro "$root"
		if chroot "$root" $probe >&2; then echo the probe succeeds where nothing is mounted; fi
		chroot "$root" /usr/local/bin/batchfs "$@" >&2 &
		until chroot "$root" $probe >&2; do kill -0 $!; sleep 0.1; done
		sha256sum <"$root/batches/mnt/train/batch/0"
		kill $!
		wait $!
		ls "$root/batches/mnt"`
	out := e2e.Run(t, slices.Concat([]string{"unshare", "--mount", "--propagation", "private", "--pid", "--kill-child", "sh", "-ec", node, root,
		strings.Join(batchfs.StartupProbe.Exec.Command, " ")}, batchfs.Args)...)
	want := e2e.Run(t, "sh", "-c", `"$0" cat train --data "$1" --set batch.order=shuffle --set batch.shuffle_block=64MiB | sha256sum`, e2e.PlainBatchfs, root+"/etc/batchfs")
	e2e.Equal(t, "the output of the node", out, want)
}

// A slurm stands in for Slurm and a trainer: it runs the scripts of deploy/slurm.
type slurm struct {
	root, config, dir, log string
	jobOutput              string // expected output of the job
}

const job, jobUser = "4711", 1234

// newSlurm copies the scripts and moves their paths into a directory of the test.
func newSlurm(t *testing.T) slurm {
	t.Helper()
	needNamespaces(t)
	e2e.NeedRoot(t, "only root runs a prolog")
	root := t.TempDir()
	e2e.NoError(t, os.Chmod(filepath.Dir(root), 0o755))
	e2e.NoError(t, os.Chmod(root, 0o755))
	config, _ := e2e.SmallConfig(t, 1)
	want := slices.Concat(e2e.Cat(t, "train/rank=0,world=2", "-c", config), e2e.Cat(t, "train/rank=1,world=2", "-c", config))
	s := slurm{root, config, root + "/run/batchfs/" + job, root + "/var/log/batchfs/" + job + ".log", string(want)}
	t.Cleanup(func() {
		syscall.Unmount(s.dir, syscall.MNT_DETACH)
		if t.Failed() {
			t.Logf("the log of the job:\n%s", s.logText())
		}
	})
	for _, script := range e2e.Must(filepath.Glob("../deploy/slurm/*"))(t) {
		e2e.Run(t, "sh", "-n", script)
		if _, err := exec.LookPath("shellcheck"); err == nil {
			e2e.Run(t, "shellcheck", script)
		}
		installed := strings.NewReplacer("/run/batchfs", root+"/run/batchfs", "/var/log/batchfs", root+"/var/log/batchfs",
			"/etc/batchfs/config.toml", config, "/etc/slurm/batchfs", root, "\nPATH=", "\nPATH="+root+":").Replace(string(e2e.Content(t, script)))
		e2e.WriteScript(t, filepath.Join(root, filepath.Base(script)), installed)
	}
	e2e.WriteScript(t, root+"/srun", `#!/bin/sh
		task_prolog=${1#--task-prolog=}; shift
		for SLURM_PROCID in 0 1; do
			export SLURM_PROCID SLURM_NTASKS=2
			said=$("$task_prolog" 2>&-) || { printf '%s\n' "$said" | sed -n 's/^print //p'; exit 1; }
			"$@"
		done`)
	e2e.WriteScript(t, root+"/python", "#!/bin/sh\ncat \"${2#--batches=}/batch/0\"\n")
	e2e.NoError(t, os.Symlink(e2e.Batchfs, root+"/batchfs"))
	return s
}

// run runs a script as slurmd does. The script must print nothing.
func (s slurm) run(t *testing.T, script string) error {
	t.Helper()
	_, stderr, err := e2e.Try(t, "env", "-i", "SLURM_JOB_ID="+job, fmt.Sprint("SLURM_JOB_UID=", jobUser), "/bin/sh", filepath.Join(s.root, script))
	e2e.Equal(t, script+" printed", stderr, "")
	return err
}

func (s slurm) train(t *testing.T) (string, error) {
	return e2e.RunAs(t, jobUser, jobUser, "env", "PATH="+s.root+":"+os.Getenv("PATH"), "SLURM_JOB_ID="+job, "sh", s.root+"/train.sbatch")
}

func (s slurm) checkBatches(t *testing.T) {
	t.Helper()
	if got, err := s.train(t); err != nil || got != s.jobOutput {
		t.Errorf("the job: error %v, output %q, want %q", err, got, s.jobOutput)
	}
}

func (s slurm) logText() string {
	text, _ := os.ReadFile(s.log)
	return string(text)
}

// The scripts mount before a job and unmount after it, however often they run. Each task of the job
// reads its own batches.
func TestSlurm(t *testing.T) {
	s := newSlurm(t)
	e2e.NoError(t, s.run(t, "prolog"))
	e2e.NoError(t, s.run(t, "prolog"))
	s.checkBatches(t)
	if out, err := e2e.RunAs(t, jobUser+1, jobUser+1, "ls", s.dir+"/train"); err == nil {
		t.Errorf("another user can list the mount: %s", out)
	}
	supervisor := func() (pid int) {
		fmt.Sscanf(e2e.Run(t, "grep", "-F", " "+s.dir+" ", "/proc/self/mounts"), "batchfs:%d:", &pid)
		return pid
	}
	e2e.NoError(t, syscall.Kill(supervisor(), syscall.SIGKILL))
	e2e.AwaitDead(t, s.dir)
	e2e.NoError(t, s.run(t, "prolog")) // the job is requeued and starts again
	s.checkBatches(t)

	hold := exec.Command("sleep", "infinity") // a process that the job leaves behind
	hold.Dir = s.dir
	e2e.Begin(t, hold)
	pid := supervisor()
	e2e.NoError(t, s.run(t, "epilog"))
	e2e.NoError(t, s.run(t, "epilog"))
	if _, err := os.Lstat(s.dir); err == nil || e2e.IsMounted(t, s.dir) || !e2e.Ended(pid) {
		t.Errorf("after the epilog: the directory exists: %v, mounted: %v, ended: %v, want false, false, true", err == nil, e2e.IsMounted(t, s.dir), e2e.Ended(pid))
	}
}

// A problem of the job fails only the job. Only a machine that cannot mount is drained.
func TestSlurmProblems(t *testing.T) {
	t.Parallel()
	s := newSlurm(t)
	valid := e2e.Content(t, s.config)
	away := "[store]\nendpoint = \"http://127.0.0.1:1\"\nanonymous = true\n[mount]\ntimeout = \"3s\"\n[splits.train]\ntokens = \"s3://bucket/train.bin\"\n"
	for wrong, why := range map[string]string{"[batch]\nbatchsize = 4\n": "batchsize", "batch\n": `config.toml:1: expected '.' or '=', but got '\n' instead`, away: "connection refused"} {
		e2e.Write(t, s.config, wrong)
		e2e.NoError(t, s.run(t, "prolog"))
		got, err := s.train(t)
		if err == nil || !strings.Contains(got, why) || !strings.Contains(got, "no batches on ") || !strings.Contains(s.logText(), why) {
			t.Errorf("the job with the configuration %q: error %v, output %q, want an error that says %q", wrong, err, got, why)
		}
	}
	e2e.Write(t, s.config, valid)
	e2e.NoError(t, s.run(t, "prolog"))
	s.checkBatches(t)
	e2e.NoError(t, s.run(t, "epilog"))

	script := filepath.Join(s.root, "prolog")
	text := strings.ReplaceAll(string(e2e.Content(t, script)), "'", `'\''`)
	e2e.Write(t, script, "unshare --mount sh -ec '"+hideDevices+"; : >/dev/null\n"+text+"'")
	if s.run(t, "prolog") == nil || !strings.Contains(s.logText(), "FIX  /dev/fuse") {
		t.Error("the prolog on a machine without FUSE succeeds, or does not say why it fails")
	}
	e2e.NoError(t, s.run(t, "epilog"))
	left, _ := filepath.Glob(s.dir + "*")
	e2e.Equal(t, "files left by the epilog", len(left), 0)
}
