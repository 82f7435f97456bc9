package spare

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// commute reports whether the order of two requests of a worker makes no difference.
func commute(a, b *Request) bool {
	return a.Push && !a.Pull && b.Push && !b.Pull && !slices.ContainsFunc(a.Pieces, func(p Piece) bool {
		return slices.ContainsFunc(b.Pieces, func(o Piece) bool { return o.Key == p.Key })
	})
}

// Whatever is merged and sent again: each worker's requests stay in order, but pushes of other keys, no frame has two of
// one worker, nothing that was sent changes, and each value goes once. A frame waits, if at all, for
// workers that have come since another one waited for them, and no longer than it may.
func TestQueueKeepsOrderAndSums(t *testing.T) {
	merged, passed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		wait := time.Duration(rapid.SampledFrom([]int{0, 2}).Draw(t, "wait"))
		q := newQueue(rapid.IntRange(0, 4).Draw(t, "merge") > 0, wait, nil)
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
						if f.asks[j] != r.ask() || q.frameOf[r.ask()] != f {
							t.Fatal("a request waits for a frame that is not its own")
						}
						for _, before := range waiting[r.Worker] {
							if before == r {
								break
							}
							if !commute(before, r) && q.frameOf[before.ask()].number >= f.number {
								t.Fatalf("request %d of worker %d is not behind %d", r.Timestamp, r.Worker, before.Timestamp)
							}
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
				for range rapid.IntRange(1, 6).Draw(t, "requests") {
					w := rapid.Int32Range(1, 4).Draw(t, "worker")
					timestamps[w]++
					r := &Request{Worker: w, Timestamp: timestamps[w], Kind: Int8}
					r.Push = rapid.IntRange(0, 3).Draw(t, "push") > 0
					r.Pull = !r.Push || rapid.IntRange(0, 5).Draw(t, "pull") == 0
					r.Single = rapid.IntRange(0, 9).Draw(t, "single") == 0
					first := rapid.Uint64Range(0, 1).Draw(t, "first")
					for key := range rapid.Uint64Range(0, 2).Draw(t, "keys") {
						p := Piece{Key: first + key}
						if r.Push {
							p.Value = bytes.Repeat([]byte{1}, 1+rapid.IntRange(0, 5).Draw(t, "length")/5)
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
					for _, before := range waiting[w] {
						if q.frameOf[before.ask()].number > f.number {
							passed++
						}
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
					if _, _, ok := q.takeAnswered(&reply{}); ok {
						t.Fatal("what was not sent is answered")
					}
					return
				}
				f := q.frames[0]
				if _, _, ok := q.takeAnswered(&reply{number: f.number + 1}); ok {
					t.Fatal("another answer is taken")
				}
				if _, _, ok := q.takeAnswered(&reply{number: f.number, pull: !f.pull}); ok {
					t.Fatal("an answer of another form is taken")
				}
				if _, _, ok := q.takeAnswered(&reply{number: f.number, pull: true, values: make([][]byte, 9)}); ok {
					t.Fatal("an answer with more values is taken")
				}
				r := &reply{number: f.number, pull: f.pull}
				if f.pull {
					r.values = slices.Repeat([][]byte{{}}, len(f.pieces))
				}
				requests, _, ok := q.takeAnswered(r)
				if !ok {
					t.Fatal("an answer is not taken")
				}
				answered += valueOf(f)
				for _, r := range requests {
					at := slices.Index(waiting[r.Worker], r)
					for _, before := range waiting[r.Worker][:max(at, 0)] {
						if !commute(before, r) {
							t.Fatal("a request is answered before one that was sent before")
						}
					}
					waiting[r.Worker] = slices.Delete(waiting[r.Worker], at, at+1)
				}
			},
			"break": func(*rapid.T) { q.sendAgain(false) },
		})
	})
	t.Logf("%d requests were merged, %d went before earlier ones", merged, passed)
	if merged == 0 || passed == 0 {
		t.Errorf("%d requests were merged, %d went before earlier ones: that tells nothing", merged, passed)
	}
}

// What a worker has sent before, or another process may have, is not merged.
func TestRepetitionsAreNotMerged(t *testing.T) {
	q := newQueue(true, 0, nil)
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
