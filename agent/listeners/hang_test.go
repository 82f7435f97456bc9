package listeners

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// A proxy that is stopped is ended by the agent, and the next one serves; one that
// goes on in time is not.
func TestAHangingProxyIsEnded(t *testing.T) {
	g := newGround(t)
	client := hoststest.Start(t, g.job, "job", hoststest.Task("client"))
	agent := g.startAgent("1m", "500ms")
	g.want(agent, g.process)
	first := g.startProxy()
	g.until(client, g.through(first))
	began := time.Now()
	require.NoError(t, syscall.Kill(first.Pid(), syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var exit *exec.ExitError
	if err := first.Wait(ctx); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the proxy ends with %v", err)
	}
	t.Logf("ended after %v", time.Since(began))
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("ended after %v already", took)
	}
	second := g.startProxy()
	g.until(client, g.through(second))
}

// What silence means: of a process that is debugged, gets no processor or waits in the kernel, or
// of an agent that was away itself, nothing is held against the proxy.
func TestJudgeSilenceOfAProxy(t *testing.T) {
	const wanted = 2 * time.Second
	for _, c := range []struct {
		name   string
		now    seen
		lasted time.Duration
		want   verdict
	}{
		{"stopped", seen{state: 'T'}, wanted, hangs},
		{"asleep, in a deadlock", seen{state: 'S', waited: wanted / 8}, wanted, hangs},
		{"turning in a circle", seen{state: 'R', ready: true, ran: wanted}, wanted, hangs},
		{"turning in a circle on a thread of its own", seen{state: 'S', ready: true, ran: wanted}, wanted, hangs},
		{"stopped on a busy machine", seen{state: 'T', waited: wanted}, wanted, hangs},
		{"debugged", seen{state: 't'}, wanted, debugged},
		{"on a busy machine", seen{state: 'R', waited: wanted / 2}, wanted, starved},
		{"waiting for a processor all the while", seen{state: 'S', ready: true, ran: wanted / 100}, wanted, starved},
		{"in a page fault that the kernel does not finish", seen{state: 'S', blocked: []string{"folio_wait_bit_common"}}, wanted, blocked},
		{"in a page fault, on a busy machine", seen{state: 'S', blocked: []string{"?"}, waited: wanted}, wanted, blocked},
		{"stopped, but for a thread in the kernel", seen{state: 'T', blocked: []string{"?"}}, wanted, hangs},
		{"the machine was suspended", seen{state: 'S'}, time.Minute, away},
	} {
		if got := judge(seen{}, c.now, wanted, c.lasted, false); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if c.want == hangs && c.now.ran > 0 {
			c.want = busy
		}
		if got := judge(seen{}, c.now, wanted, c.lasted, true); got != c.want {
			t.Errorf("%s, for now: %q, want %q", c.name, got, c.want)
		}
	}
}

// A process that computes is seen to run, by its threads.
func TestLookAtAProcess(t *testing.T) {
	p := &peer{pid: int32(os.Getpid())}
	before := p.look()
	done := make(chan struct{})
	defer close(done)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	deadline := time.Now().Add(time.Minute)
	for {
		now := p.look()
		if now.ready && now.ran > before.ran && now.state != 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute of computing it is %+v, before %+v", now, before)
		}
	}
}

// A message names some of the threads in uninterruptible sleep, by what the kernel tells of them.
func TestSleepsAreNamed(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ wchan, want string }{
		{"folio_wait_bit_common", "folio_wait_bit_common"},
		{"0", "?"}, // the kernel tells only who may trace the process
		{"", "?"},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "wchan"), []byte(c.wchan), 0o600))
		if got := sleepsIn(dir); got != c.want {
			t.Errorf("a thread that sleeps in %q is said to sleep in %q, want %q", c.wchan, got, c.want)
		}
	}
	if got := sleepsIn(filepath.Join(dir, "gone")); got != "?" {
		t.Errorf("a thread that has ended sleeps in %q", got)
	}
	for _, c := range []struct {
		blocked []string
		want    string
	}{
		{nil, ""},
		{[]string{"a"}, "; threads in uninterruptible sleep: 1, in a"},
		{[]string{"a", "b", "?", "c", "d", "e"}, "; threads in uninterruptible sleep: 6, in a, b, ?, c"},
	} {
		if got := (&seen{blocked: c.blocked}).sleeps(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// Proxies are not ended again and again.
func TestLimitOfEndingProxies(t *testing.T) {
	var l limit
	now := time.Now()
	for i := range mostEnds {
		if !l.allows(now.Add(time.Duration(i) * time.Second)) {
			t.Errorf("end %d is not allowed", i)
		}
	}
	if l.allows(now.Add(endsWithin - time.Second)) {
		t.Error("one too many is allowed")
	}
	if !l.allows(now.Add(endsWithin)) {
		t.Error("none is allowed later")
	}
}

// A process that is stuck is asked for its stacks first, and killed if that does not end it or
// if it is stopped.
func TestStuckProcessIsAskedForItsStacks(t *testing.T) {
	for _, c := range []struct {
		name, script string
		state        byte
		want         syscall.Signal
	}{
		{"ends by it", "echo ready; exec sleep 1000", 'S', syscall.SIGABRT},
		{"does not", "trap '' ABRT; echo ready; exec sleep 1000", 'S', syscall.SIGKILL},
		{"is stopped", "echo ready; kill -STOP $$; exec sleep 1000", 'T', syscall.SIGKILL},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.script)
			out := require.Value(cmd.StdoutPipe())(t)
			require.NoError(t, cmd.Start())
			if _, err := out.Read(make([]byte, 16)); err != nil { // until it is set up
				t.Fatal(err)
			}
			fd := require.Value(unix.PidfdOpen(cmd.Process.Pid, 0))(t)
			p := &peer{pid: int32(cmd.Process.Pid), pidfd: fd}
			defer p.close()
			require.NoError(t, p.kill(c.state))
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != c.want {
				t.Errorf("it ends with %v, want %v", err, c.want)
			}
		})
	}
}
