package jobs

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// greetingOf is what a node says before messages.
func greetingOf(socket, identity string) []byte {
	g := zmtp.NewGreeting(0, 0)
	return zmtp.AppendReady(g[:], socket, []byte(identity))
}

// libzmq ends a connection on which a message comes while it has not said READY itself:
// what the router puts in waits for that.
func TestNothingComesBeforeAHandshake(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	message := appendMessage(nil, [][]byte{[]byte("said by the router")})
	hello, reply := greetingOf("DEALER", "ps8"), greetingOf("ROUTER", "")

	t.Run("to a process", func(t *testing.T) {
		line := j.inbound(workerAt, Scope{}, nil)
		c := carry(t, line, false)
		sayTo(t, c.far, hello)
		expect(t, c.process, "a greeting", hello)
		line.enqueue(message)
		if line.HasDue() || line.Due() != nil {
			t.Error("a message is due before READY")
		}
		sayTo(t, c.process, reply)
		expect(t, c.far, "a greeting", reply)
		expect(t, c.process, "after READY", message)
	})

	t.Run("from a process", func(t *testing.T) {
		line := j.outbound(serverAt, Scope{}, "here")
		c := carry(t, line, false)
		sayTo(t, c.process, hello)
		expect(t, c.far, "a greeting", hello)
		line.enqueue(message)
		if line.HasDue() || line.Due() != nil {
			t.Error("a message is due before READY")
		}
		sayTo(t, c.far, reply)
		expect(t, c.process, "a greeting", reply)
		expect(t, c.far, "after READY", message)
	})
}

// A link that ends while its last messages are written to the process does not cut them:
// the end comes behind them, and behind what the router has.
func TestLinkEndsWhileMessagesAreWritten(t *testing.T) {
	line := jobsIn(t, t.TempDir()).inbound(workerAt, Scope{}, nil)
	c := carry(t, line, false)
	// What is written must not fit into the buffers.
	require.NoError(t, errors.Join(c.conn.Job.(interface{ SetWriteBuffer(int) error }).SetWriteBuffer(1<<16), c.process.SetReadBuffer(1<<16)))
	sayTo(t, c.process, greetingOf("ROUTER", ""))
	expect(t, c.far, "a greeting", greetingOf("ROUTER", ""))
	message := appendMessage(nil, [][]byte{(&pslite.Meta{Head: 7, Body: []byte("hello")}).Append(nil, pslite.DMLC)})
	said := slices.Concat(greetingOf("DEALER", "ps8"), bytes.Repeat(message, 8<<20/len(message)))
	written := make(chan error, 1)
	go func() {
		_, err := c.far.Write(said)
		written <- errors.Join(err, c.far.CloseWrite())
	}()
	require.Eventually(t, "something comes over the link", func() bool { return c.conn.ToJob.Counts().In > 0 })
	line.enqueue(message)
	got, err := io.ReadAll(c.process)
	if want := len(said) + len(message); err != nil || len(got) != want {
		t.Errorf("the process gets %d bytes, %v; want all %d and the end", len(got), err, want)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// What waits for a handshake that never ends is not lost with its connection.
func TestAConnectionEndsBeforeItsHandshake(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	message := appendMessage(nil, [][]byte{[]byte("said by the router")})
	up := j.outbound(serverAt, Scope{}, "here")
	up.enqueue(message)
	if b := passed(t, up, greetingOf("DEALER", "ps9")); !bytes.Equal(b, greetingOf("DEALER", "ps9")) {
		t.Errorf("%d bytes came", len(b))
	}
	if left := up.retire(); len(left) != 1 {
		t.Errorf("%d messages are left of what was to be put in, want 1", len(left))
	}
	down := j.inbound(workerAt, Scope{}, nil)
	down.enqueue(message)
	_, process := connected(t)
	if err := down.Leave(process); err != nil {
		t.Error(err)
	}
	if left := down.retire(); len(left) != 1 {
		t.Errorf("%d messages are left of what was to be put in, want 1", len(left))
	}
}
