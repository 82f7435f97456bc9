package cli

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryShare is which part of a container's memory, in percent, the garbage
// collector aims to stay below.
const memoryShare = 85

// LimitMemory has the garbage collector mind the limit of the cgroup that the
// process runs in, as a container sees it: without, it lets garbage grow to as much
// as is in use, and the process is killed with half of its memory free. GOMEMLIMIT
// says otherwise where it is set.
func LimitMemory() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if limit, ok := shareOf(string(text)); ok && limit < debug.SetMemoryLimit(-1) {
			debug.SetMemoryLimit(limit)
		}
		return
	}
}

// shareOf returns the part of a limit, as a cgroup's file has it, that is to be
// used; ok is false where there is none.
func shareOf(text string) (limit int64, ok bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/2 { // cgroup v1 spells "none" as a huge number
		return 0, false
	}
	return n / 100 * memoryShare, true
}
