package hoststest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/psidecar/psidecar/internal/hosts"
)

// threadsOf describes the process's threads, one in a line: id, state, where in the kernel they
// wait, and in which system call.
func threadsOf(p *hosts.Process) string {
	var all strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.Pid())) // fails for a bad pattern only
	for _, task := range tasks {
		fmt.Fprint(&all, filepath.Base(task))
		if stat, err := os.ReadFile(filepath.Join(task, "stat")); err == nil {
			fmt.Fprintf(&all, " %.2s", stat[bytes.LastIndexByte(stat, ')')+2:])
		}
		for _, name := range []string{"wchan", "syscall"} {
			text, err := os.ReadFile(filepath.Join(task, name))
			if err != nil {
				text = []byte(err.Error()) // it has ended, or is about to
			}
			fmt.Fprintf(&all, " %s", bytes.TrimSpace(text))
		}
		fmt.Fprintln(&all)
	}
	return all.String()
}

// Sleepers describes all threads of the machine that are in uninterruptible sleep, each with its
// kernel stack as far as the kernel shows it. They are what a killed process waits for before it
// ends.
func Sleepers() string {
	var all strings.Builder
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/*") // fails for a bad pattern only
	for _, task := range tasks {
		stat, err := os.ReadFile(filepath.Join(task, "stat"))
		if err != nil {
			continue // it has ended
		}
		if end := bytes.LastIndexByte(stat, ')'); end < 0 || !bytes.HasPrefix(stat[end+1:], []byte(" D")) {
			continue
		}
		stack, err := os.ReadFile(filepath.Join(task, "stack"))
		if err != nil {
			stack = []byte(err.Error())
		}
		fmt.Fprintf(&all, "%s: %s\n%s\n", task, bytes.TrimSpace(stat), bytes.TrimSpace(stack))
	}
	return all.String()
}
