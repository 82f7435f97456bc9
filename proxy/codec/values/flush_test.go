package values

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// own returns the messages of the proxy's own that are to be sent, as they come
// out at the other end.
func (w *way) own(t *testing.T) (messages [][][]byte) {
	t.Helper()
	for {
		head, ok := w.sender.(*Sender).Initiate(nil)
		if !ok {
			return messages
		}
		w.encoded += len(head)
		frames, plain, err := w.receiver.Decode(head)
		if err != nil || plain != 0 {
			t.Fatal(plain, err)
		}
		var kept [][]byte
		for _, f := range frames {
			kept = append(kept, append([]byte(nil), f...))
		}
		messages = append(messages, kept)
	}
}

func control(m pslite.Meta) [][]byte {
	m.Head, m.AppID, m.Timestamp = pslite.Empty, 0, 3
	return [][]byte{m.Append(nil, pslite.DMLC)}
}

// A barrier is not held back for long where a server does not answer, and that is
// counted.
func TestABarrierPassesWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
		up, _ := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
		scheduler := e.dial(t, e.worker, e.server, "ps9")
		r := rand.New(rand.NewPCG(7, 7))
		for step := range 60 {
			up.carry(t, pushes(r, step).frames())
		}
		began := time.Now()
		scheduler.carry(t, control(pslite.Meta{Request: true, Control: pslite.Control{Cmd: pslite.Barrier, BarrierGroup: 7}}))
		if took := time.Since(began); took != barrierPatience {
			t.Errorf("the barrier was held back for %v, want %v", took, barrierPatience)
		}
		if len(up.own(t)) == 0 {
			t.Error("nothing waited")
		}
		if n := e.worker.Counts().Reasons[ReasonNoFlush]; n == 0 {
			t.Error("that no answer came is not counted")
		}
	})
}

// A worker's last barrier goes when the server has all that was pushed, exactly,
// and nobody in the job has seen more than its own messages; with and without
// PS_RESEND, and where a push of ours is lost on its way.
func TestFlushAtTheEnd(t *testing.T) {
	for _, resend := range []bool{false, true} {
		e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
		up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
		scheduler := e.dial(t, e.worker, e.server, "ps9")
		pushed, got := sums{}, sums{}
		r := rand.New(rand.NewPCG(7, 7))
		for step := range 60 {
			q := pushes(r, step)
			pushed.add(q.keys, q.vals, q.lens)
			got.add(q.keys, floats(up.carry(t, q.frames())[2]), q.lens)
		}
		if resend {
			for _, w := range []*way{up, scheduler} {
				w.carry(t, control(pslite.Meta{Control: pslite.Control{Cmd: pslite.Ack, MsgSig: 7}}))
			}
		}
		if pushed.difference(got) == 0 {
			t.Fatal("nothing waits")
		}
		// A barrier among workers alone is none.
		scheduler.carry(t, control(pslite.Meta{Request: true, Control: pslite.Control{Cmd: pslite.Barrier, BarrierGroup: pslite.WorkerGroup}}))
		released := make(chan struct{})
		go func() {
			defer close(released)
			scheduler.carry(t, control(pslite.Meta{Request: true, Control: pslite.Control{Cmd: pslite.Barrier, BarrierGroup: 7}}))
		}()
		lost, acks, seen := 0, 0, map[int32]bool{}
		for running := true; running; {
			select {
			case <-released:
				running = false
			case <-time.After(time.Millisecond):
			}
			for _, frames := range up.own(t) {
				var m pslite.Message
				var det pslite.Detector
				if _, err := m.Decode(&det, frames); err != nil {
					t.Fatal(err)
				}
				if m.Meta.Control.Cmd == pslite.Ack {
					acks++
					continue
				}
				if resend && lost < 2 {
					lost++
					continue
				}
				if !seen[m.Meta.Timestamp] { // as a server with PS_RESEND does
					seen[m.Meta.Timestamp] = true
					var lens []int32
					for i := range m.Lens().Len() {
						lens = append(lens, m.Lens().At(i))
					}
					got.add(m.Keys().AppendTo(nil), floats(m.Data[1]), lens)
				}
				answer := m.Meta
				answer.Request = false
				answer.DataTypes = nil
				reply := [][]byte{answer.Append(nil, pslite.DMLC)}
				if resend {
					ack := pslite.Meta{Control: pslite.Control{Cmd: pslite.Ack, MsgSig: pslite.Signature(&m.Meta, 9, 8)}}
					down.swallowed(t, control(ack))
				}
				down.swallowed(t, reply)
			}
		}
		if left := pushed.difference(got) + got.difference(pushed); left != 0 {
			t.Errorf("resend %v: sums are off by %v", resend, left)
		}
		c := e.worker.Counts()
		if c.StateBytes > 1<<20 || c.Reasons[ReasonFlushed] == 0 || c.Reasons[ReasonNoFlush] != 0 {
			t.Errorf("resend %v: %+v", resend, c)
		}
		up.own(t)
		if resend != (acks > 0) {
			t.Errorf("resend %v: %d answers were acknowledged", resend, acks)
		}
		for _, w := range []*way{up, down, scheduler} {
			w.close()
		}
	}
}

// swallowed sends a message that is for the proxy at the other end alone.
func (w *way) swallowed(t *testing.T, frames [][]byte) {
	t.Helper()
	head, plain, ok := w.sender.Encode(nil, message(frames))
	if !ok || plain != 0 {
		t.Fatal("an answer to a push of ours goes to the job")
	}
	if frames, _, err := w.receiver.Decode(head); err != nil || len(frames) != 0 {
		t.Fatalf("%d frames come out for the job, %v", len(frames), err)
	}
}

// Without a way back, nothing is sent, and it is counted.
func TestFlushNeedsAWayBack(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9})
	up := e.dial(t, e.worker, e.server, "ps9")
	defer up.close()
	q := pushes(rand.New(rand.NewPCG(1, 1)), 2)
	up.carry(t, q.frames())
	if err := e.worker.Flush(t.Context()); err == nil || e.worker.Counts().Reasons[ReasonNoFlush] != 1 {
		t.Errorf("%v, %+v", err, e.worker.Counts())
	}
	if sent := up.own(t); len(sent) != 0 {
		t.Errorf("%d messages were sent", len(sent))
	}
}

// A push of our own that is answered just when it would be repeated goes whole or
// not at all.
func TestAnsweredPushIsNotRepeated(t *testing.T) {
	c, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		own := &ownPush{answered: make(chan struct{}), frames: [][]byte{{1}, {2}, {3}}}
		timestamp := c.nextOwn()
		c.expect(timestamp, own)
		var answering sync.WaitGroup
		answering.Go(func() { c.answered(timestamp) })
		for whole := true; whole; {
			frames := c.unanswered(own)
			if whole = frames != nil; whole && len(frames) != 3 {
				t.Fatalf("%d of 3 frames would be sent again", len(frames))
			}
		}
		answering.Wait()
		if len(own.frames) != 1 {
			t.Fatalf("%d frames are kept of an answered push", len(own.frames))
		}
	}
}
