package spare

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever is merged and sent again: each worker's requests stay in order, no frame has two of
// one worker, nothing that was sent changes, and each value goes once. A frame waits, if at all, for
// workers that have come since another one waited for them, and no longer than it may.
func TestQueueKeepsOrderAndSums(t *testing.T) {
	merged := 0
	rapid.Check(t, func(t *rapid.T) {
		wait := time.Duration(rapid.SampledFrom([]int{0, 2}).Draw(t, "wait"))
		q := newQueue(rapid.IntRange(0, 4).Draw(t, "merge") > 0, wait)
		now := time.Now()
		q.now = func() time.Time { return now }
		begun, ready := map[*frame]time.Time{}, map[*frame]bool{}
		timestamps := map[int32]int32{}
		away := map[int32]bool{}            // workers that came once, and a frame has waited for in vain since
		waiting := map[int32][]*Request{}   // in the order of sending
		sum, answered := 0, 0               // of values that were taken, and of frames that are answered
		var ones [][]byte                   // the memory of all values
		sentAs := map[*frame]string{}       // frames that were sent
		valueOf := func(f *frame) (n int) { // sums of all values
			for _, p := range f.pieces {
				for _, b := range p.Value {
					n += int(b)
				}
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				messages, size, values := 0, 0, 0
				last := map[int32]int32{}
				inQueue := map[int32]int{}
				for i, f := range q.frames {
					size += f.bytes
					values += valueOf(f)
					messages += len(f.requests)
					if len(f.asks) != len(f.requests) {
						t.Fatalf("a frame has %d asks and %d requests", len(f.asks), len(f.requests))
					}
					if i > 0 && q.frames[i-1].number >= f.number {
						t.Fatal("frames are not in order")
					}
					if (sentAs[f] != "") != (i < q.sent) && sentAs[f] == "" {
						t.Fatal("a frame counts as sent, and was not")
					}
					if s := sentAs[f]; s != "" && s != fmt.Sprint(f.message) {
						t.Fatalf("a frame that was sent changed from %s to %v", s, f.message)
					}
					seen := map[int32]bool{}
					for _, a := range f.asks {
						if seen[a.Worker] {
							t.Fatal("a frame has two requests of a worker")
						}
						seen[a.Worker] = true
					}
					for j, r := range f.requests {
						if n, ok := last[r.Worker]; ok && n >= r.Timestamp && !r.Single {
							t.Fatalf("request %d of worker %d is behind %d", r.Timestamp, r.Worker, n)
						}
						last[r.Worker] = r.Timestamp
						if f.asks[j] != r.ask() || q.frameOf[r.ask()] != f {
							t.Fatal("a request waits for a frame that is not its own")
						}
						if inQueue[r.Worker] >= len(waiting[r.Worker]) || waiting[r.Worker][inQueue[r.Worker]] != r {
							t.Fatalf("worker %d's requests are not in order", r.Worker)
						}
						inQueue[r.Worker]++
					}
				}
				for w, rs := range waiting {
					if inQueue[w] != len(rs) {
						t.Fatalf("%d requests of worker %d wait, want %d", inQueue[w], w, len(rs))
					}
				}
				if q.messages != messages || q.bytes != size || len(q.frameOf) != messages {
					t.Fatalf("%d requests, %d bytes, %d asks; want %d, %d", q.messages, q.bytes, len(q.frameOf), messages, size)
				}
				for _, b := range ones {
					if bytes.Count(b, []byte{1}) != len(b) {
						t.Fatal("the memory of a value has changed")
					}
				}
				if values+answered != sum {
					t.Fatalf("the sum is %d, and %d is answered, want %d", values, answered, sum)
				}
			},
			"add": func(t *rapid.T) {
				w := rapid.Int32Range(1, 4).Draw(t, "worker")
				timestamps[w]++
				r := &Request{Worker: w, Timestamp: timestamps[w], Kind: Int8}
				r.Push = rapid.Bool().Draw(t, "push")
				r.Pull = !r.Push || rapid.IntRange(0, 5).Draw(t, "pull") == 0
				r.Single = rapid.IntRange(0, 9).Draw(t, "single") == 0
				for key := range rapid.Uint64Range(1, 2).Draw(t, "keys") {
					p := Piece{Key: key}
					if r.Push {
						p.Value = bytes.Repeat([]byte{1}, rapid.IntRange(1, 2).Draw(t, "length"))
						sum += len(p.Value)
						ones = append(ones, p.Value)
					}
					r.Pieces = append(r.Pieces, p)
				}
				delete(away, w)
				q.addRequest(r, shapeOf(r))
				f := q.frameOf[r.ask()]
				if begun[f].IsZero() {
					begun[f] = now
				}
				if wait == 0 || f.shape == 0 || len(f.asks) >= len(timestamps)-len(away) {
					ready[f] = true
				}
				waiting[w] = append(waiting[w], r)
				if len(f.asks) > 1 {
					merged++
					if r.Single || !q.merge || f.push == f.pull {
						t.Fatal("a request was merged that must not be")
					}
				}
				if sentAs[f] != "" {
					t.Fatal("a request joined a frame that was sent")
				}
			},
			"send": func(t *rapid.T) {
				before := q.sent
				frames, left := q.takeFrames(rapid.IntRange(1, 4).Draw(t, "most"), 100)
				for _, f := range frames {
					if sentAs[f] == "" && !ready[f] {
						if now.Before(begun[f].Add(wait)) {
							t.Fatal("a frame is sent that could wait for other workers")
						}
						for w := range timestamps {
							if !slices.ContainsFunc(f.asks, func(a Ask) bool { return a.Worker == w }) {
								away[w] = true
							}
						}
					}
					sentAs[f] = fmt.Sprint(f.message)
				}
				if before < len(q.frames) && q.sent == before {
					if f := q.frames[q.sent]; ready[f] || sentAs[f] != "" || left <= 0 || left != begun[f].Add(wait).Sub(now) {
						t.Fatalf("nothing is sent for %v", left)
					}
				}
			},
			"pass": func(*rapid.T) { now = now.Add(1) },
			"answer": func(t *rapid.T) {
				if q.sent == 0 {
					if _, ok := q.takeAnswered(&reply{}); ok {
						t.Fatal("what was not sent is answered")
					}
					return
				}
				f := q.frames[0]
				if _, ok := q.takeAnswered(&reply{number: f.number + 1}); ok {
					t.Fatal("another answer is taken")
				}
				if _, ok := q.takeAnswered(&reply{number: f.number, pull: !f.pull}); ok {
					t.Fatal("an answer of another form is taken")
				}
				if _, ok := q.takeAnswered(&reply{number: f.number, pull: true, values: make([][]byte, 9)}); ok {
					t.Fatal("an answer with more values is taken")
				}
				r := &reply{number: f.number, pull: f.pull}
				if f.pull {
					r.values = make([][]byte, len(f.pieces))
				}
				requests, ok := q.takeAnswered(r)
				if !ok {
					t.Fatal("an answer is not taken")
				}
				answered += valueOf(f)
				for _, r := range requests {
					if waiting[r.Worker][0] != r {
						t.Fatal("a request is answered before one that was sent before")
					}
					waiting[r.Worker] = waiting[r.Worker][1:]
				}
			},
			"break": func(*rapid.T) { q.sendAgain() },
		})
	})
	if merged == 0 {
		t.Error("nothing was merged: that tells nothing")
	}
}

// What a worker has sent before, or another process may have, is not merged.
func TestRepetitionsAreNotMerged(t *testing.T) {
	q := newQueue(true, 0)
	add := func(worker, timestamp int32, single bool) int {
		r := &Request{Worker: worker, Timestamp: timestamp, Push: true, Kind: Int8, Pieces: []Piece{{1, []byte{1}}}, Single: single}
		q.addRequest(r, shapeOf(r))
		return len(q.frameOf[r.ask()].asks)
	}
	for _, tc := range []struct {
		worker, timestamp int32
		single            bool
		asks              int
	}{
		{1, 1 << 28, false, 1},
		{2, 5, false, 2},
		{3, 1, true, 1},
		{4, 7, false, 3},
		{1, 1, false, 1}, // wrapped
		{2, 6, false, 2}, // joins that of worker 1
		{5, 9, false, 4}, // joins the first
		{5, 3, false, 1}, // older
		{2, 4, false, 1}, // older
		{3, 2, false, 3}, // joins that of workers 1 and 2
		{1, 1, true, 1},  // again
	} {
		if asks := add(tc.worker, tc.timestamp, tc.single); asks != tc.asks {
			t.Errorf("%d of worker %d goes with %d asks, want %d", tc.timestamp, tc.worker, asks, tc.asks)
		}
	}
}
