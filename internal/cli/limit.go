package cli

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryShare is the percentage of a container's memory that the garbage collector aims to stay
// below. The rest is for what the Go runtime does not count.
const memoryShare = 85

// LimitMemory makes the garbage collector respect the memory limit of the cgroup that the
// process runs in, as a container sees it. Without that, garbage may grow to as much as the
// memory in use, and the kernel kills the process while half of its memory could be freed.
// GOMEMLIMIT takes precedence.
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

// shareOf returns the part of a cgroup's limit that is to be used; ok is false if there is no
// limit.
func shareOf(text string) (limit int64, ok bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/2 { // cgroup v1 spells "none" as a huge number
		return 0, false
	}
	return n / 100 * memoryShare, true
}
