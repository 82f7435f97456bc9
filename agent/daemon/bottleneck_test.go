package daemon

import (
	"testing"
	"time"
)

// The link is what a connection waits for where it is busy for a fifth of the time and carries less
// meanwhile than proxies could spare, unless late acknowledgements alone explain that.
func TestLimits(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		acked uint64
		busy  time.Duration
		rtt   time.Duration
		rate  uint64
		want  bool
	}{
		"10 Mbit/s, all the time":              {1_250_000, 1000 * ms, 13 * ms, 1_250_000, true},
		"10 Mbit/s, a fifth of the time":       {250_000, 200 * ms, 13 * ms, 1_250_000, true},
		"10 Mbit/s, less":                      {240_000, 199 * ms, 200 * ms, 1_250_000, false},
		"below 200 Mbit/s":                     {24_000_000, 1000 * ms, 13 * ms, 24_999_999, true},
		"200 Mbit/s":                           {25_000_000, 1000 * ms, 200 * ms, 25_000_000, false},
		"1 Gbit/s":                             {125_000_000, 1000 * ms, 13 * ms, 125_000_000, false},
		"1 Gbit/s, in part":                    {30_000_000, 240 * ms, 13 * ms, 125_000_000, false},
		"a queue before a slower link":         {1_250_000, 1000 * ms, 50 * ms, 125_000_000, true},
		"late acknowledgements":                {1_250_000, 1000 * ms, 40 * ms, 125_000_000, false},
		"nothing sent":                         {0, 0, 200 * ms, 0, false},
		"few bytes, each acknowledged late":    {4000, 900 * ms, 40 * ms, 100_000, false},
		"few bytes, which a dead link carries": {0, 1000 * ms, 200 * ms, 0, false},
	} {
		before := usage{time.Unix(1000, 0), 77, 5 * time.Second, 0, 0}
		now := usage{before.at.Add(time.Second), before.acked + c.acked, before.busy + c.busy, c.rtt, c.rate}
		if got := now.limits(before); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A connection is taken in after three usages at which its link was slow, and not by some that
// come and go; from then on it is so until it was fast as often.
func TestBottleneck(t *testing.T) {
	for _, c := range []struct{ usages, want string }{
		{"sss", "--+"},
		{"ssss", "--++"},
		{"sfsfsfsf", "--------"},
		{"ssfss", "----+"},
		{"sssff", "--+++"},
		{"sssfff", "--+++-"},
		{"sssffsfff", "--+++++--"},
		{"fffsss", "-----+"},
	} {
		var b bottleneck
		u := usage{at: time.Unix(1000, 0)}
		b.addUsage(u)
		got := ""
		for _, link := range c.usages {
			u.at = u.at.Add(usageEvery)
			if u.acked += 1e5; link == 's' {
				u.busy += usageEvery
			}
			b.addUsage(u)
			if b.is {
				got += "+"
			} else {
				got += "-"
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.usages, got, c.want)
		}
	}
}
