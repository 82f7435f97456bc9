package proxy

import (
	"testing"
	"time"
)

func TestMemoryIsGivenBackOnceAfterConnections(t *testing.T) {
	given := 0
	r := releaser{giveBack: func() { given++ }}
	start := time.Now()
	for _, c := range []struct {
		name    string
		after   time.Duration // since the start
		active  int
		carried uint64
		want    int
	}{
		{"nothing was carried yet", 0, 0, 0, 0},
		{"nor for long", time.Hour, 0, 0, 0},
		{"a connection", time.Hour, 1, 1, 0},
		{"that lasts", 2 * time.Hour, 1, 1, 0},
		{"it ended", 2*time.Hour + 1, 0, 1, 0},
		{"a moment ago", 2*time.Hour + 2, 0, 1, 0},
		{"another", 2*time.Hour + 3, 1, 2, 0},
		{"ended too", 2*time.Hour + 4, 0, 2, 0},
		{"almost long enough", 2*time.Hour + 3 + releaseAfter, 0, 2, 0},
		{"long enough", 2*time.Hour + 4 + releaseAfter, 0, 2, 1},
		{"once only", 3 * time.Hour, 0, 2, 1},
		{"short ones between two looks", 4 * time.Hour, 0, 9, 1},
		{"count too", 5 * time.Hour, 0, 9, 2},
	} {
		if r.releaseIfIdle(start.Add(c.after), c.active, c.carried); given != c.want {
			t.Errorf("%s: given back %d times, want %d", c.name, given, c.want)
		}
	}
}
