package proxy

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// The shares of a host and of this process are those of the time since the last reading.
func TestUsageOfProcessors(t *testing.T) {
	var m usageMeter
	require.Value(m.read(time.Now()))(t)
	before := m
	end := time.Now().Add(time.Minute)
	for {
		// Work until the kernel has counted some of it.
		for range 1_000_000 {
			before.idle ^= before.total
		}
		u := require.Value(m.read(time.Now()))(t)
		if u.Idle < 0 || u.Idle > 1 || u.Own < 0 {
			t.Fatalf("%+v", u)
		}
		if u.Own > 0 && u.Own <= 1.5 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a process that computes uses %+v", u)
		}
	}
}
