package listeners

import (
	"testing"

	"github.com/psidecar/psidecar/internal/handover"
)

// What proxies carried adds up over those that came and went, from when they came.
func TestCarriedAddsUpOverProxies(t *testing.T) {
	var l Listeners
	a, b := handover.NewConn(nil), handover.NewConn(nil)
	check := func(what string, job, far uint64, known bool) {
		t.Helper()
		if j, f, ok := l.Carried(); j != job || f != far || ok != known {
			t.Errorf("%s: %d and %d, known %v; want %d and %d, %v", what, j, f, ok, job, far, known)
		}
	}
	l.carried.tells(a, nil)
	check("of a proxy that does not say", 0, 0, false)
	l.carried.tells(a, &handover.Carried{Job: 1000, Far: 500}) // before this agent
	check("at first", 0, 0, true)
	l.carried.tells(a, &handover.Carried{Job: 1400, Far: 600})
	l.carried.tells(b, &handover.Carried{})
	l.carried.tells(b, &handover.Carried{Job: 10, Far: 5})
	check("two", 410, 105, true)
	l.carried.leaves(a)
	check("one is gone", 410, 105, true)
	l.carried.leaves(a)
	l.carried.tells(b, &handover.Carried{Job: 20, Far: 8})
	check("the other goes on", 420, 108, true)
}
