package proxy

import (
	"errors"
	"testing"

	"github.com/psidecar/psidecar/proxy/relay"
)

// What is announced of a stream's end decides whether it is one, wherever the link began.
func TestEndOfAStreamThatIsAnnounced(t *testing.T) {
	for _, c := range []struct {
		name       string
		began, end uint64
		came       int
		broken     bool
	}{
		{"all has come", 50, 100, 50, false},
		{"bytes are missing", 50, 100, 49, true},
		{"what the process had got came again in part", 50, 50, -10, true},
		{"an earlier version's proxy has counted less", 50, 70, 50, false},
	} {
		l := &keptLink{began: c.began, lane: &lane{orderly: true, dead: make(chan struct{})}}
		l.farEnd = &c.end
		if err := l.farEnded(c.came); errors.Is(err, relay.ErrBroken) != c.broken {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
