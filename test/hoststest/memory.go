package hoststest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

// memoryMountV1 is the mount point of the memory controller on machines that have it in cgroup
// v1.
const memoryMountV1 = "/sys/fs/cgroup/memory"

// A MemoryGroup is a cgroup whose processes may hold a limited amount of memory, like those of
// a container: the kernel kills one that needs more.
type MemoryGroup struct {
	dir string
	v1  bool
}

// LimitMemory limits the memory of the processes in a host's group to limit bytes. On machines
// whose memory controller is in cgroup v1, the limit applies to processes started by way of
// [MemoryGroup.Enter], and the cgroup, whose processes are killed then, is removed with the test.
// A group must be limited only once.
func LimitMemory(t testing.TB, h *hosts.Host, group string, limit int64) (*MemoryGroup, error) {
	dir, err := h.Group(group)
	if err != nil {
		return nil, err
	}
	net := filepath.Dir(h.Cgroup())
	controllers, err := os.ReadFile(filepath.Join(net, "cgroup.controllers"))
	if err == nil && bytes.Contains(controllers, []byte("memory")) {
		return limitV2(dir, []string{net, h.Cgroup()}, limit)
	}
	if _, err := os.Stat(filepath.Join(memoryMountV1, "memory.limit_in_bytes")); err != nil {
		return nil, fmt.Errorf("limiting the memory of %s on host %s: no memory controller, neither in cgroup v2 nor at %s: %w", group, h.Name, memoryMountV1, err)
	}
	g := &MemoryGroup{dir: filepath.Join(memoryMountV1, h.Namespace()+"-"+group), v1: true}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("limiting the memory of %s on host %s: %w", group, h.Name, err)
	}
	t.Cleanup(func() {
		if err := removeGroup(g.dir); err != nil {
			t.Error(err)
		}
	})
	err = os.WriteFile(filepath.Join(g.dir, "memory.limit_in_bytes"), strconv.AppendInt(nil, limit, 10), 0)
	// Whoever a process runs as, it may enter.
	return g, errors.Join(err, os.Chmod(filepath.Join(g.dir, "cgroup.procs"), 0o666))
}

// limitV2 sets a limit in cgroup v2. A controller must be enabled in each cgroup above, from
// the top.
func limitV2(dir string, parents []string, limit int64) (*MemoryGroup, error) {
	for _, p := range parents {
		if err := os.WriteFile(filepath.Join(p, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return nil, fmt.Errorf("the memory controller of %s: %w", p, err)
		}
	}
	return &MemoryGroup{dir: dir}, os.WriteFile(filepath.Join(dir, "memory.max"), strconv.AppendInt(nil, limit, 10), 0)
}

// Enter returns a command that runs cmd within the limit. Only path, arguments, environment and
// credentials of cmd may be set. Its PID stays the same, since the shell execs it.
func (g *MemoryGroup) Enter(cmd *exec.Cmd) *exec.Cmd {
	if !g.v1 {
		return cmd
	}
	enter := exec.Command("/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"), cmd.Path}, cmd.Args[1:]...)...)
	enter.Env, enter.SysProcAttr = cmd.Env, cmd.SysProcAttr
	return enter
}

// Peak returns the largest amount of memory that its processes have held at a time, in bytes,
// including what the kernel keeps for them, such as pages of files.
func (g *MemoryGroup) Peak() (int64, error) {
	name := "memory.peak"
	if g.v1 {
		name = "memory.max_usage_in_bytes"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// Kills returns how many processes the kernel has killed because the limit was reached.
func (g *MemoryGroup) Kills() (int, error) {
	name := "memory.events"
	if g.v1 {
		name = "memory.oom_control"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, fmt.Errorf("%s of %s does not say how many were killed: %q", name, g.dir, text)
}

// removeGroup kills what is left in a group of cgroup v1 and removes it. The kernel may take a
// moment to let go of the processes.
func removeGroup(dir string) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return err
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			n, err := strconv.Atoi(pid)
			if err != nil {
				return fmt.Errorf("%s lists the process %q", dir, pid)
			}
			_ = syscall.Kill(n, syscall.SIGKILL) // it may have ended
		}
		if err := os.Remove(dir); err == nil || time.Now().After(end) {
			return err
		}
	}
}
