package proxy

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/cputime"
	"github.com/psidecar/psidecar/proxy/payoff"
)

// loadEvery is the period at which the use of the host's processors is read while messages pass,
// and loadIdle that at which a proxy looks whether any do.
const (
	loadEvery = 250 * time.Millisecond
	loadIdle  = time.Second
)

// watchLoad tells load how busy the host's processors are, until ctx ends.
func (p *Proxy) watchLoad(ctx context.Context) {
	var meter usageMeter
	told, sent := false, p.load.Messages()
	for every := loadIdle; pause(ctx, every); {
		n := p.load.Messages()
		if n == sent && every == loadIdle {
			continue
		}
		if every = loadEvery; n == sent {
			every = loadIdle
		}
		sent = n
		u, err := meter.read(time.Now())
		if err != nil {
			if !told {
				p.log.Info("the use of processors is unknown; --codec auto judges by links alone", "error", err)
			}
			told = true
			continue
		}
		before := p.load.Figures()
		p.load.Tick(u)
		switch f := p.load.Figures(); {
		case f == before:
		case before != nil && f.Trials == before.Trials:
			p.log.Info("messages are encoded again without a trial: the host's processors are free, or nothing was sent for a while")
		default:
			p.log.Info("the host's processors are busy, or this proxy is throttled by its CPU limit: tried whether the job is faster without encoding", "passes", f.Passes, "messages_per_second_encoded", f.Encoded, "plain", f.Plain, "trials", f.Trials)
		}
	}
}

// usageMeter reads what the host's processors and this process do.
type usageMeter struct {
	total, idle uint64        // of the host, in ticks of the kernel
	own         time.Duration // of this process
	at          time.Time     // of the last reading
	limits      cpuLimits
}

// ticksPerSecond is USER_HZ, which is the same on all platforms of Linux that Go runs on.
const ticksPerSecond = 100

// read returns the usage since it was last called.
func (m *usageMeter) read(now time.Time) (u payoff.Usage, err error) {
	total, idle, err := cputime.Read("/proc")
	if err != nil {
		return u, err
	}
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return u, err
	}
	own := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	u.At = now
	if d := now.Sub(m.at); !m.at.IsZero() && d > 0 {
		u.Throttled = m.limits.read().Seconds() / d.Seconds()
	} else {
		m.limits.open("/proc/self/cgroup", "/sys/fs/cgroup")
	}
	m.at = now
	// Without ticks nothing was idle that is known of.
	if d := float64(total - m.total); d > 0 {
		u.Idle = float64(idle-m.idle) / d
		u.Own = (own - m.own).Seconds() * ticksPerSecond / d
	}
	m.total, m.idle, m.own = total, idle, own
	return u, nil
}
