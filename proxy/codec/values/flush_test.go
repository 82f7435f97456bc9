package values

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
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
	dialect := pslite.DMLC
	if m.Control.Cmd == pslite.InstanceBarrier {
		dialect = pslite.BytePSRaw // which alone has it
	}
	return [][]byte{m.Append(nil, dialect)}
}

// A barrier is not held back for long where a server does not answer, and that is
// counted.
func TestABarrierPassesWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
		up, _ := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
		scheduler, _ := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps1")
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
		scheduler, fromScheduler := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps1")
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
				require.Value(m.Decode(&det, frames))(t)
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
		for _, w := range []*way{up, down, scheduler, fromScheduler} {
			w.close()
		}
		if n := len(e.worker.heard); n != 0 {
			t.Errorf("links with %d proxies are counted when all have ended", n)
		}
	}
}

// lastBarrier is a worker's, in PS-lite's Finalize.
func lastBarrier(cmd pslite.Command) [][]byte {
	return control(pslite.Meta{Request: true, Control: pslite.Control{Cmd: cmd, BarrierGroup: 7}})
}

// A worker's last barrier is held back for what waits wherever it goes: over a link,
// past the codec to a host without a proxy, and BytePS's, which is of instances.
func TestLastBarriersAreHeld(t *testing.T) {
	past := func(c *Codec) func(frames [][]byte) bool {
		o := c.Observe(relay.Link{Dialed: true, Origin: "here", Destination: netip.MustParseAddrPort("198.18.0.3:8000")})
		o.(relay.Greeter).Ready(zmtp.Ready{Identity: []byte("ps9")})
		t.Cleanup(o.Close)
		return func(frames [][]byte) bool { return o.Observe(message(frames)) }
	}
	for name, c := range map[string]struct {
		past bool
		cmd  pslite.Command
	}{
		"link":                         {false, pslite.Barrier},
		"link, instances":              {false, pslite.InstanceBarrier},
		"past the codec":               {true, pslite.Barrier},
		"past the codec, of instances": {true, pslite.InstanceBarrier},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
			up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
			defer up.close()
			defer down.close()
			send := past(e.worker)
			if !c.past {
				scheduler, back := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps1")
				defer scheduler.close()
				defer back.close()
				send = func(frames [][]byte) bool { scheduler.carry(t, frames); return true }
			}
			r := rand.New(rand.NewPCG(7, 7))
			for step := range 20 {
				up.carry(t, pushes(r, step).frames())
			}
			if !send(control(pslite.Meta{Request: true, Control: pslite.Control{Cmd: c.cmd, BarrierGroup: pslite.WorkerGroup}})) {
				t.Fatal("more is not wanted after a barrier")
			}
			if len(up.own(t)) > 0 {
				t.Fatal("a barrier among workers has pushes made")
			}
			released := make(chan struct{})
			go func() { defer close(released); send(lastBarrier(c.cmd)) }()
			answered := answerOwn(t, up, down, released, func(*pslite.Message) {
				select {
				case <-released:
					t.Fatal("the barrier went before the server had what waited")
				default:
				}
			})
			if n := e.worker.StillWaiting(); answered == 0 || n > 0 {
				t.Errorf("%d values wait after the barrier", n)
			}
			if c.past && send(request{push: true, keys: []uint64{1}, vals: []float32{1}}.frames()) {
				t.Error("more is wanted of a connection to a server")
			}
		})
	}
}

// What waits goes over the link that a process's connection goes on with when the other
// proxy was replaced after its last push; over that of another process it does not.
func TestFlushOverTheNextLink(t *testing.T) {
	for name, goesOn := range map[string]bool{"of the same connection": true, "of another connection": false} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
			up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
			defer down.close()
			r := rand.New(rand.NewPCG(7, 7))
			for step := range 20 {
				up.carry(t, pushes(r, step).frames())
			}
			up.close()
			next := e.link()
			next.Continues = goesOn
			up = e.open(t, next, e.worker, e.server, "ps9")
			defer up.close()
			flushed := make(chan struct{})
			go func() { defer close(flushed); e.worker.endWorker("here", "ps9") }()
			sent := answerOwn(t, up, down, flushed, func(*pslite.Message) {})
			if waits := e.worker.StillWaiting(); (sent > 0) != goesOn || (waits == 0) != goesOn {
				t.Errorf("%d pushes were sent, and %d values wait", sent, waits)
			}
		})
	}
}

// answerOwn answers pushes of the proxy's own, as a server does that adds them up,
// until done is closed, and returns how many came. It calls see with each.
func answerOwn(t *testing.T, up, down *way, done <-chan struct{}, see func(*pslite.Message)) (came int) {
	t.Helper()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(time.Millisecond):
		}
		for _, frames := range up.own(t) {
			came++
			var m pslite.Message
			require.Value(m.Decode(new(pslite.Detector), frames))(t)
			see(&m)
			m.Meta.Request, m.Meta.DataTypes = false, nil
			down.swallowed(t, [][]byte{m.Meta.Append(nil, pslite.DMLC)})
		}
	}
	return came
}

// Of a worker whose last barrier went past the proxy, as the agent tells, what waits
// goes at once, and that it could not be held back is counted. Other workers' stays,
// and where servers may count pushes all does.
func TestBarriersPastTheProxy(t *testing.T) {
	for name, c := range map[string]struct {
		job   string
		node  int32
		adds  bool
		sends bool
		want  Reason
	}{
		"that worker":            {"198.18.0.1:8000", 9, true, true, ReasonUnheld},
		"another worker":         {"198.18.0.1:8000", 11, true, false, ""},
		"another job's":          {"198.18.0.7:8000", 9, true, false, ""},
		"servers that may count": {"198.18.0.1:8000", 9, false, false, ReasonNotSent},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9})
			e.worker.adds = c.adds
			up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
			defer up.close()
			defer down.close()
			e.worker.EndPast(t.Context(), c.job, c.node) // a worker that begins says the same
			if counts := e.worker.Counts(); len(counts.Reasons) > 0 {
				t.Errorf("before anything waits: %v", counts.Reasons)
			}
			up.carry(t, pushes(rand.New(rand.NewPCG(1, 1)), 2).frames())
			ended := make(chan struct{})
			go func() { defer close(ended); e.worker.EndPast(t.Context(), c.job, c.node) }()
			sent := answerOwn(t, up, down, ended, func(*pslite.Message) {}) > 0
			if waits := e.worker.StillWaiting() > 0; sent != c.sends || waits == c.sends {
				t.Errorf("sent %v, want %v; something waits: %v", sent, c.sends, waits)
			}
			if reasons := e.worker.Counts().Reasons; c.want != "" && reasons[c.want] == 0 || c.want == "" && len(reasons) > 0 {
				t.Errorf("%v, want %s", reasons, c.want)
			}
		})
	}
}

// Last pushes have no more keys each than the worker's own: servers like MXNet's end
// where a push has two.
func TestLastPushesAreLikeTheJobs(t *testing.T) {
	for _, most := range []int{1, 3} {
		e := newEnds(t, Rule{Unpulled: true, Threshold: 0.99})
		up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
		r := rand.New(rand.NewPCG(5, 5))
		pushed, got := sums{}, sums{}
		for step := range int32(40) {
			q := request{timestamp: step, push: true}
			for i := range most {
				q.keys = append(q.keys, uint64(int(step)%5*most+i))
				q.lens = append(q.lens, 20)
			}
			for range 20 * most {
				q.vals = append(q.vals, float32(r.IntN(99)-49))
			}
			pushed.add(q.keys, q.vals, q.lens)
			got.add(q.keys, floats(up.carry(t, q.frames())[2]), q.lens)
		}
		ended := make(chan error, 1)
		done := make(chan struct{})
		go func() { ended <- e.worker.Flush(t.Context()); close(done) }()
		seen := map[int]int{}
		answerOwn(t, up, down, done, func(m *pslite.Message) {
			seen[m.Keys().Len()]++
			var lens []int32
			for i := range m.Lens().Len() {
				lens = append(lens, m.Lens().At(i))
			}
			got.add(m.Keys().AppendTo(nil), floats(m.Values().Bytes), lens)
		})
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for n := range seen {
			if n > most {
				t.Errorf("%d last pushes have %d keys, the worker's had %d", seen[n], n, most)
			}
		}
		if left := pushed.difference(got) + got.difference(pushed); len(seen) == 0 || left != 0 {
			t.Errorf("last pushes by number of keys: %v; sums are off by %v", seen, left)
		}
		up.close()
		down.close()
	}
}

// Where a link back is missing of those that there are to a host, a server there
// may answer past the proxies: nothing of our own is sent.
func TestFlushNeedsAllWaysBack(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9})
	up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
	other := e.dial(t, e.worker, e.server, "ps9") // to another server of that host, which answers directly
	for _, w := range []*way{up, down, other} {
		defer w.close()
	}
	up.carry(t, pushes(rand.New(rand.NewPCG(1, 1)), 2).frames())
	if err := e.worker.Flush(t.Context()); err == nil || e.worker.Counts().Reasons[ReasonNoFlush] != 1 {
		t.Errorf("%v, %+v", err, e.worker.Counts())
	}
	if sent := up.own(t); len(sent) != 0 {
		t.Errorf("%d messages were sent", len(sent))
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

// BytePS's servers answer on the asker's connection, where nobody keeps the answer to
// a push of our own from the worker: none is made.
func TestNoFlushToBytePS(t *testing.T) {
	e := newEnds(t, Rule{Unpulled: true, Threshold: 0.9})
	up, down := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.server, e.worker, "ps8")
	defer up.close()
	defer down.close()
	frames := pushes(rand.New(rand.NewPCG(1, 1)), 2).frames()
	var m pslite.Message
	require.Value(m.Decode(new(pslite.Detector), frames))(t)
	frames[0] = m.Meta.Append(nil, pslite.BytePSRaw)
	up.carry(t, frames)
	if e.worker.StillWaiting() == 0 {
		t.Fatal("nothing waits")
	}
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
	c := require.Value(New(Options{}))(t)
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
