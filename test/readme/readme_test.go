package readme

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// insideVariable is set in the process that has namespaces of its own.
const insideVariable = "PSIDECAR_TEST_README"

// Each command of the README is run by a step, and each step is in the README.
func TestEveryCommandHasAStep(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := Commands(string(text))
	if len(commands) < 20 {
		t.Fatalf("the README has %d commands: %q", len(commands), commands)
	}
	has := map[string]bool{}
	for _, c := range chapters {
		for _, line := range c.lines {
			has[line] = true
			if !slices.Contains(commands, line) {
				t.Errorf("the README has no command %q any more", line)
			}
		}
	}
	for _, c := range commands {
		if _, elsewhere := otherTests[c]; !has[c] && !elsewhere {
			t.Errorf("%q is in the README, and no test runs it: add it to chapters", c)
		}
	}
	for c := range otherTests {
		if !slices.Contains(commands, c) {
			t.Errorf("the README has no command %q any more", c)
		}
	}
}

func TestCommands(t *testing.T) {
	got := Commands("```\nmake demo    # what\nphase  1\n```\npsidecar no\n```yaml\npsidecar no\n```\n```sh\n  psidecar status --json\n```\n")
	if want := []string{"make demo", "psidecar status --json"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReadme runs the commands on a machine of its own (namespaces for processes,
// mounts and network), beside a load that takes all cores.
func TestReadme(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	if os.Getenv(insideVariable) != "" {
		return // TestInside does
	}
	tools := t.TempDir()
	for name, folder := range map[string]string{"psidecar": "cmd/psidecar", "psjob": "cmd/psjob"} {
		if err := os.Symlink(hoststest.BuildJob(t, folder), filepath.Join(tools, name)); err != nil {
			t.Fatal(err)
		}
	}
	group, err := os.MkdirTemp(require.CgroupV2(t), "psd-readme-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	}()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInside$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), insideVariable+"="+group+":"+tools)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestInside") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInside is TestReadme in its namespaces.
func TestInside(t *testing.T) {
	inside := os.Getenv(insideVariable)
	if inside == "" {
		return // TestReadme starts it
	}
	dir := t.TempDir()
	t.Chdir(dir)
	if err := enter(dir); err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, ctx: t.Context(), port: 9000}
	h.group, h.tools, _ = strings.Cut(inside, ":")
	h.load()
	for _, c := range chapters {
		if !t.Run(c.name, func(t *testing.T) {
			h.t = t
			c.play(h)
		}) {
			break // what comes later builds on it
		}
		fmt.Println(c.name, "done")
	}
	h.t = t
}
