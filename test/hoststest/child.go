package hoststest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/require"
)

// taskVariable makes a test binary a process of a test instead of testing.
const taskVariable = "PSIDECAR_TEST_TASK"

// Main is the TestMain of tests whose binary is also the processes that they
// run on hosts, see [Task]. It looks for leaked goroutines at the end.
func Main(m *testing.M, tasks map[string]func(args []string) error, options ...goleak.Option) {
	if words := strings.Fields(os.Getenv(taskVariable)); len(words) > 0 {
		task := tasks[words[0]]
		if task == nil {
			fmt.Fprintf(os.Stderr, "this test binary has no task %q\n", words[0])
			os.Exit(2)
		}
		if err := task(words[1:]); err != nil {
			fmt.Fprintln(os.Stderr, words[0], err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, options...)
}

// Task is the test binary as one of Main's tasks; the arguments hold no space.
func Task(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), taskVariable+"="+strings.Join(append([]string{name}, args...), " "))
	return cmd
}

// A Child is a process on a host that is told what to do, and tells, in lines.
type Child struct {
	*hosts.Process
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts cmd in a group of the host. It is killed with the test, if it
// has not ended when its input closes; what it says on standard error is shown
// where the test fails.
func Start(t testing.TB, h *hosts.Host, group string, cmd *exec.Cmd) *Child {
	t.Helper()
	var errors bytes.Buffer
	cmd.Stderr = &errors
	in := require.Value(cmd.StdinPipe())(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = w
	p := require.Value(h.StartIn(group, cmd))(t)
	w.Close()
	t.Cleanup(func() {
		in.Close()
		p.Signal(syscall.SIGKILL) // has it ended, fine
		<-p.Done()
		r.Close()
		if t.Failed() {
			t.Logf("%s on %s: %s", group, h.Name, errors.Bytes())
		}
	})
	return &Child{p, t, in, bufio.NewReader(r)}
}

// Line waits for the child's next line.
func (c *Child) Line() string {
	c.t.Helper()
	text, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatalf("process %d: %v", c.Pid(), err)
	}
	return strings.TrimSpace(text)
}

// Rest returns all that the child still says, until its end.
func (c *Child) Rest() string {
	c.t.Helper()
	text, err := io.ReadAll(c.out)
	if err != nil {
		c.t.Fatalf("process %d: %v", c.Pid(), err)
	}
	return string(text)
}

// Ask gives the child a line and waits for one.
func (c *Child) Ask(line string) string {
	c.t.Helper()
	require.Value(io.WriteString(c.in, line+"\n"))(c.t)
	return c.Line()
}

// AskJSON gives the child order as a line of JSON and puts its line into
// answer.
func (c *Child) AskJSON(order, answer any) {
	c.t.Helper()
	c.Tell(order)
	require.NoError(c.t, json.Unmarshal([]byte(c.Line()), answer))
}

// Tell gives the child order as a line of JSON and waits for nothing.
func (c *Child) Tell(order any) {
	c.t.Helper()
	require.NoError(c.t, json.NewEncoder(c.in).Encode(order))
}

// CloseInput ends the child's input, by which most tasks end.
func (c *Child) CloseInput() { c.in.Close() }

// End sends the child a signal and waits for its end.
func (c *Child) End(sig syscall.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.Signal(sig))
	<-c.Done()
}
