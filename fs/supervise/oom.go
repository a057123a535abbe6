package supervise

import (
	"fmt"
	"os"
)

// oomScoreFile tells the kernel how likely it should be to kill this process if memory runs out.
const oomScoreFile = "/proc/self/oom_score_adj"

// neverKill is the score of a process that the kernel never kills for lack of memory.
const neverKill = -1000

// surviveOOM makes the kernel spare this process if memory runs out, and returns the score that it
// had before, or 0 if that was neverKill already. It may need CAP_SYS_RESOURCE, and does nothing
// without it.
//
// In a cgroup with memory.oom.group, as on Kubernetes, the kernel kills all other processes at
// once.
func surviveOOM() (before int64) {
	if text, err := os.ReadFile(oomScoreFile); err == nil {
		fmt.Sscan(string(text), &before)
	}
	if before == neverKill {
		return 0
	}
	os.WriteFile(oomScoreFile, fmt.Append(nil, neverKill), 0)
	return before
}

// preferForOOM makes the kernel kill this worker before other processes if memory runs out, because
// no reader notices when a worker dies. supervisorScore is the score that the supervisor began
// with; that of a standby is higher, and that of a serving worker higher still.
func preferForOOM(supervisorScore int64, isServing bool) {
	score := supervisorScore + 250
	if isServing {
		score += 250
	}
	os.WriteFile(oomScoreFile, fmt.Append(nil, min(score, 1000)), 0) // best effort
}
