package jobs

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// waitsSeen records the calls about waiting values.
type waitsSeen struct {
	told  []string
	taken uint64
	sends bool
}

func (w *waitsSeen) Follow(origin string, worker int32, servers []netip.AddrPort, keys []plan.Keys, owner func(uint64) int32) {
	w.told = append(w.told, fmt.Sprint(origin, " ", worker, " ", servers, " ", keys, " ", owner(1)))
}
func (w *waitsSeen) Sends(string, int32) bool { return w.sends }
func (w *waitsSeen) Taken() uint64            { return w.taken }

func (w *waitsSeen) Changes(string) bool                     { return w.sends }
func (w *waitsSeen) WaitsOf(string, int32, []plan.Keys) bool { return w.sends }

// What waits of a worker goes along with keys: when it connects, when keys have
// moved, and when more was taken up of a proxy before this one.
func TestWhatWaitsIsToldOfMoves(t *testing.T) {
	w := &waitsSeen{}
	x := oneJob(t, Options{Waits: w})
	worker := pslite.WorkerID(0)
	c := &requests{jobs: x.jobs, sender: worker, origin: "here"}
	servers := fmt.Sprint(x.addresses())
	want := func(what string, told ...string) {
		t.Helper()
		if !slices.Equal(w.told, told) {
			t.Errorf("%s: told %q, want %q", what, w.told, told)
		}
		w.told = nil
	}
	home := x.router.Table().Owner(1)
	of := func(keys []plan.Keys, owner int32) string {
		return fmt.Sprint("here ", worker, " ", servers, " ", keys, " ", owner)
	}
	w.told = nil
	x.connects(c)
	want("it connects", of(nil, home))
	x.connects(c)
	want("it connects again")
	b, keys := route.Batch{Mover: "another", Number: 1}, []plan.Keys{plan.One(1)}
	x.mu.Lock()
	x.router.Hold(b, keys)
	x.router.Release(b, 0)
	x.followTaken()
	x.mu.Unlock()
	want("a key has moved", of(keys, 0))
	w.taken++
	x.mu.Lock()
	x.followTaken()
	x.followTaken()
	x.mu.Unlock()
	want("something was taken up", of(nil, 0))
	away := route.Batch{Mover: "another", Number: 2}
	x.mu.Lock()
	x.router.Hold(away, keys)
	x.mu.Unlock()
	if x.settledKeys() {
		t.Error("a key is on its way, and yet all are settled")
	}
	want("a key is on its way")
	x.mu.Lock()
	x.router.Release(away, 0)
	x.mu.Unlock()
	want("it has come back to where it was", of(keys, 0))
	if !x.settledKeys() {
		t.Error("no key moves, and yet it is not settled")
	}
	want("something is about to be sent", of(nil, 0))
	for _, w.sends = range []bool{true, false} {
		if busy := (follower{x}).Busy(); busy != w.sends {
			t.Errorf("it sends: %v, busy: %v", w.sends, busy)
		}
	}
}
