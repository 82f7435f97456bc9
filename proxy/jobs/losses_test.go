package jobs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// answersTo gives a job a connection of server 0 to its worker.
func answersTo(t *testing.T, x *job) (c *answers) {
	t.Helper()
	c = &answers{jobs: x.jobs, job: x, sender: pslite.ServerID(0), peer: pslite.WorkerID(0), receptive: true}
	c.join(x, c.peer)
	return c
}

// manyAnswers has the router say more to a pair's worker than sockets hold.
func manyAnswers(x *job, p pair) (messages [][]byte) {
	for i := range 300 {
		messages = append(messages, appendMessage(nil, [][]byte{bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 1<<15)}))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	say(x, x.down, x.pendingDown, p, messages...)
	return messages
}

// A write to a worker is cut short: each message is either with the worker as a whole, or waits
// for the pair's next connection, whether that is there already or not.
func TestAnswersOfACutWriteWait(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		x := oneJob(t, Options{})
		c := answersTo(t, x)
		p := pair{c.peer, 0}
		messages := manyAnswers(x, p)
		over := carry(t, c, true)
		require.Eventually(t, "all is written", func() bool { return !c.HasDue() })
		var next *answers
		if replaced {
			next = back(t, x, 0) // not greeted, so that all stays in its queue
		}
		require.NoError(t, over.conn.Job.SetWriteDeadline(time.Now()))
		<-over.ended
		if !errors.Is(over.err, os.ErrDeadlineExceeded) {
			t.Fatalf("the relay ends with %v", over.err)
		}
		left := x.pendingDown[p]
		if replaced {
			left = next.retire()
		}
		// What the process has got is lost with the reset; what the kernel took is not there again.
		if n := len(left); n == 0 || n == len(messages) || !slices.EqualFunc(left, messages[len(messages)-n:], bytes.Equal) {
			t.Errorf("replaced %v: %d of %d messages wait, or others", replaced, n, len(messages))
		}
		if s := x.state(); s.Lost != 0 {
			t.Errorf("replaced %v: %d messages are counted as lost", replaced, s.Lost)
		}
	}
}

// The same where the connection is left for the next proxy, and the process reads what was written:
// each message is with it as a whole, or waits.
func TestAnswersThatAreNotLeftWait(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		x := oneJob(t, Options{})
		c := answersTo(t, x)
		p := pair{c.peer, 0}
		far, to := connected(t)
		require.NoError(t, errors.Join(to.SetWriteBuffer(1<<16), far.(*net.TCPConn).SetReadBuffer(1<<16)))
		messages := manyAnswers(x, p)
		var next *answers
		if err := c.Leave(to); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("it was left with %v", err)
		}
		if replaced {
			next = back(t, x, 0) // not greeted, so that all stays in its queue
		}
		c.Close()
		to.Close()
		got := require.Value(io.ReadAll(far))(t)
		left := x.pendingDown[p]
		if replaced {
			left = next.retire()
		}
		if whole := len(got) / len(messages[0]); !slices.EqualFunc(left, messages[whole:], bytes.Equal) {
			t.Errorf("replaced %v: the worker got %d of %d messages, and %d wait", replaced, whole, len(messages), len(left))
		}
		if s := x.state(); s.Lost != 0 {
			t.Errorf("replaced %v: %d messages are counted as lost", replaced, s.Lost)
		}
	}
}

// Of a write that was cut short, what was not written as a whole is written again, and nothing else.
func TestCutWrites(t *testing.T) {
	messages := [][]byte{[]byte("one"), []byte("three"), []byte("four")}
	for n := range 13 {
		x := oneJob(t, Options{})
		c := answersTo(t, x)
		for _, m := range messages {
			c.enqueue(m)
		}
		c.Sent(c.Due(), n)
		whole, at := 0, 0
		for whole < len(messages) && at+len(messages[whole]) <= n {
			at += len(messages[whole])
			whole++
		}
		if !slices.EqualFunc(c.queue, messages[whole:], bytes.Equal) || c.backlog.messages != len(messages)-whole {
			t.Errorf("of %d bytes written %q is left, and a backlog of %d", n, c.queue, c.backlog.messages)
		}
	}
}

// Letters that are dropped are counted.
func TestDroppedLettersAreCounted(t *testing.T) {
	x := oneJob(t, Options{Dial: func(context.Context, netip.Addr) (net.Conn, error) { return nil, errors.New("nobody is there") }})
	dropped := func(why loss, want uint64) {
		t.Helper()
		require.Eventually(t, "letters are counted as "+string(why), func() bool { return x.jobs.DroppedLetters()[string(why)] >= want })
		if got := x.jobs.DroppedLetters()[string(why)]; got != want {
			t.Errorf("%s: %d letters are counted, want %d", why, got, want)
		}
	}
	to := netip.MustParseAddr("198.18.0.2")
	x.jobs.send(to, []byte("before there is anybody to send it"))
	dropped(letterStopping, 1)
	ctx, stop := context.WithCancel(t.Context())
	var running errgroup.Group
	running.Go(func() error { return x.jobs.Run(ctx) })
	awaitState(t, x, "running", func() bool {
		x.jobs.runMu.Lock()
		defer x.jobs.runMu.Unlock()
		return x.jobs.run != nil
	})
	x.jobs.send(to, []byte("nobody is there"))
	dropped(letterLink, 1)
	stop()
	require.NoError(t, running.Wait())

	x = oneJob(t, Options{})
	x.mu.Lock()
	x.sendSite("worker-2.example", &migrate.Message{Kind: migrate.Join})
	x.mu.Unlock()
	dropped(letterAddress, 1)
	x.hear(&letter{job: x.name, run: testRun, from: "10.0.0.9", to: "10.0.0.1", message: migrate.Message{Kind: migrate.Join}})
	dropped(letterHost, 1)
	x.close()
	x.hear(&letter{job: x.name, run: testRun, from: "10.0.0.9", to: "10.0.0.1", message: migrate.Message{Kind: migrate.Join}})
	dropped(letterJob, 1)
}

// A link's queue is bounded by letters and by bytes; one large letter always fits.
func TestLinkQueueIsBounded(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	to := netip.MustParseAddr("198.18.0.2")
	l := &siteLink{queue: make(chan []byte, linkQueue)}
	j.links[to] = l
	j.send(to, make([]byte, linkBytes+1))
	j.send(to, []byte{1})
	if n := j.DroppedLetters()["full"]; n != 1 || len(l.queue) != 1 {
		t.Fatalf("%d letters are queued, %d counted as dropped, want one each", len(l.queue), n)
	}
	l.takeLetter(<-l.queue)
	for range linkQueue + 2 {
		j.send(to, []byte{1})
	}
	if n := j.DroppedLetters()["full"]; n != 3 || len(l.queue) != linkQueue {
		t.Errorf("%d letters are queued, %d counted as dropped, want %d and 3", len(l.queue), n, linkQueue)
	}
}

// Other hosts can have only so many ranges of keys held. A hold beyond is not answered, so that
// its mover gives up.
func TestHoldsAreBounded(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1"})
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	m.Control.Nodes = []pslite.Node{{ID: pslite.WorkerID(1), Hostname: "10.0.0.2", Port: 9100}}
	x.nodes.Learn(&m)
	hold := func(number uint64, first, n int) route.Batch {
		keys := make([]plan.Keys, n)
		for i := range keys {
			keys[i] = plan.One(uint64(2 * (first + i)))
		}
		b := route.Batch{Mover: "10.0.0.2", Number: number}
		x.hear(&letter{job: x.name, run: testRun, from: "10.0.0.2", to: "10.0.0.1", message: migrate.Message{Kind: migrate.Hold, Batch: b, Keys: keys}})
		return b
	}
	first := hold(1, 0, maxHeld-1)
	if second := hold(2, maxHeld, 1); x.router.Held(first) == nil || x.router.Held(second) != nil {
		t.Error("it is not the second of two holds that is dropped")
	}
	hold(1, 0, maxHeld-1) // again, as it was not answered
	if n := x.jobs.DroppedLetters()["holds"]; n != 1 {
		t.Errorf("%d letters are counted as dropped, want 1", n)
	}
}

// Messages beyond what may wait for a connection are counted. Where nobody repeats them the job
// fails.
func TestMessagesBeyondTheBoundFailTheJob(t *testing.T) {
	for _, resend := range []bool{false, true} {
		x := oneJob(t, Options{})
		x.mu.Lock()
		if resend {
			x.router.UseResend()
		}
		for range maxPending + 1 {
			say(x, x.up, x.pendingUp, pair{pslite.WorkerID(0), 1}, nil)
		}
		failed := x.failed
		x.mu.Unlock()
		if (failed == nil) != resend || failed != nil && reason.Of(failed) != reason.Memory {
			t.Errorf("PS_RESEND %v: the job fails with %v", resend, failed)
		}
		if n := x.jobs.LostMessages()["full"]; n != 1 || x.state().Lost != 1 {
			t.Errorf("PS_RESEND %v: %d messages are counted, want 1", resend, n)
		}
	}
}

// Messages for a server that did not go before a link ended are the first over the next one, or, where
// another connection serves the pair by then, go over that.
func TestRequestsThatDidNotGoComeBack(t *testing.T) {
	messages := [][]byte{[]byte("one"), []byte("two"), []byte("three"), []byte("four")}
	for _, replaced := range []bool{false, true} {
		x := oneJob(t, Options{})
		p := pair{pslite.WorkerID(0), 0}
		dial := func() *requests {
			c := x.jobs.outbound(netip.MustParseAddrPort("10.0.0.1:9001"), Scope{}, "here")
			require.NoError(t, c.ready(p.worker))
			c.Receptive()
			return c
		}
		c := dial()
		for _, m := range messages[:3] {
			say(x, x.up, x.pendingUp, p, m)
		}
		due := c.Due()
		if len(due) != 3 {
			t.Fatalf("%d messages are due, want 3", len(due))
		}
		next, want := c, messages[1:]
		if replaced {
			next, want = dial(), messages[1:3]
		} else {
			say(x, x.up, x.pendingUp, p, messages[3])
		}
		c.Sent(due[1:], 0)
		if got := next.Due(); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("replaced %v: %q go next, want %q", replaced, got, want)
		}
		if s := x.state(); s.Lost != 0 {
			t.Errorf("replaced %v: %d messages are counted as lost", replaced, s.Lost)
		}
	}
}
