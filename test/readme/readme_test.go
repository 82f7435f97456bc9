package readme

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// insideVariable is set in the process that has namespaces of its own.
const insideVariable = "PSIDECAR_TEST_README"

// manual returns the text of the README and of the manual's pages.
func manual(t *testing.T) string {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("the manual has no pages: %v", err)
	}
	var all strings.Builder
	for _, page := range append(pages, "../../README.md") {
		text := require.Value(os.ReadFile(page))(t)
		all.Write(text)
		all.WriteByte('\n')
	}
	return all.String()
}

// Each command of the README and the manual is run by a step, and each step is there.
func TestEveryCommandHasAStep(t *testing.T) {
	commands := Commands(manual(t))
	if len(commands) < 35 {
		t.Fatalf("README and manual have %d commands: %q", len(commands), commands)
	}
	has := map[string]bool{}
	for _, c := range chapters {
		for _, line := range c.lines {
			has[line] = true
			if !slices.Contains(commands, line) {
				t.Errorf("neither README nor manual has the command %q any more", line)
			}
		}
	}
	for _, c := range commands {
		if _, elsewhere := otherTests[c]; !has[c] && !elsewhere {
			t.Errorf("%q is in the README or the manual, and no test runs it: add it to chapters", c)
		}
	}
	for c := range otherTests {
		if !slices.Contains(commands, c) {
			t.Errorf("neither README nor manual has the command %q any more", c)
		}
	}
}

// Commands with words in capitals for what is the user's, in running text or indented, have
// flags that there are: with --help behind them they are no wrong usage.
func TestMentionedCommandsParse(t *testing.T) {
	psidecar := hoststest.BuildJob(t, "cmd/psidecar")
	all := mentioned(manual(t))
	if len(all) < 30 {
		t.Fatalf("README and manual mention %d commands: %q", len(all), all)
	}
	for _, line := range all {
		words := strings.Fields(placeholder.ReplaceAllString(line, "1"))
		if out, err := exec.Command(psidecar, append(words[1:], "--help")...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}

var (
	placeholder = regexp.MustCompile(`\b[A-Z][A-Z0-9-]*\b`)
	inText      = regexp.MustCompile("(?m)`(psidecar [^`\n]*)`|^    (psidecar .*)$")
)

// mentioned returns the command lines of psidecar that are indented or in running text,
// without what is behind a # or not in one line.
func mentioned(text string) []string {
	var all []string
	for _, m := range inText.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		line, _, _ := strings.Cut(m[1]+m[2], "  #")
		if line = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), "...")); !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
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
		require.NoError(t, os.Symlink(hoststest.BuildJob(t, folder), filepath.Join(tools, name)))
	}
	group := require.Value(os.MkdirTemp(require.CgroupV2(t), "psd-readme-"))(t)
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
	require.NoError(t, enter(dir))
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
