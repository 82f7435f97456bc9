package shared

import (
	"time"

	"github.com/psidecar/psidecar/proxy/payoff"
)

// Sharing costs copies and comparisons, which on a link as fast as memory take longer than the
// bytes that they spare. Whether it does is tried where the lane is that fast.

// turnBytes is how many bytes of values a turn of a trial has at least.
const turnBytes = 128 << 20

// SetTrials has a trial decide whether values are shared, among others of this host, before the first link joins;
// nil: they are in any case.
func (s *Source) SetTrials(among *payoff.Trials) {
	if among != nil {
		s.trial = &payoff.Trial{Among: among, Least: turnBytes}
	}
}

// speed is that of a lane, as far as it was written to lately.
type speed struct {
	bytes int
	took  time.Duration
}

// fastLane is how many bytes a second the lane must take, measured over fastBytes, for
// a trial to begin: on slower links each byte that is spared pays.
const fastLane, fastBytes = 250e6, 64 << 20

// wrote records how long writing to the lane took. Old figures weigh less and less.
func (v *speed) wrote(bytes int, took time.Duration) {
	v.bytes, v.took = v.bytes+bytes, v.took+took
	if v.bytes > 2*fastBytes {
		v.bytes, v.took = v.bytes/2, v.took/2
	}
}

func (v *speed) isFast() bool {
	return v.bytes >= fastBytes && float64(v.bytes) > fastLane*v.took.Seconds()
}

// countAnswer records an answer, shared or not. The caller holds s.mu.
func (s *Source) countAnswer(bytes int) {
	s.trial.Step(s.now(), bytes, s.speed.isFast())
}

// wants is Wants for a group with several processes to share among. The caller holds
// s.mu.
func (s *Source) wants(o *Outlet, subject Subject) bool {
	switch {
	case !s.trial.On():
		s.plain(Slower)
		return false
	case !s.mayFit(subject.Bytes):
		s.plain(TooLarge)
		return false
	case s.latest[subject] != nil:
		return true
	}
	if o.tried = s.lessons.try(subject); !o.tried {
		s.plain(Seldom)
	}
	return o.tried
}
