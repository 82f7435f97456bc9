package values

import (
	"maps"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
)

// Delay is how much of a gradient is held back. Delays of layers, streams and hosts add up.
type Delay struct {
	Values  int     // that are held back
	Squares float64 // the sum of their squares
	// Step is the sum of squares of what one step pushes, in the mean. The root of Squares / Step is how
	// many steps' gradient is held back.
	Step float64
}

func (d *Delay) addDelay(o Delay) {
	d.Values += o.Values
	d.Squares += o.Squares
	d.Step += o.Step
}

// delayMeter measures the Delay of a layer in the second of the steps that push to it, the fourth,
// the eighth and so on, and then in every 64th, or every 16th of a layer that adapts. Of more than
// sampled numbers it looks at as many at even distances: reading all of a gradient and of a residual
// takes as long as a push. It belongs to the layer's stream, whose mutex guards it.
type delayMeter struct {
	seen    int  // steps
	at      int  // the layer's age in the last one
	measure bool // this step
	squares float64
	last    Delay
}

// stepsMean is over about how many measured steps the mean of Step is: one batch may have many times
// the gradient of another.
const stepsMean = 4

// sampled is how many numbers of a gradient, and of a residual, a delayMeter looks at.
const sampled = 1 << 15

// strideOf returns the distance of numbers that are looked at, of n. It is odd, since layers have
// rows of an even length.
func strideOf(n int) int { return max(1, n/sampled) | 1 }

// push notes a push of numbers of a kind, before the layer has compressed it. A step may have
// several.
func (d *delayMeter) push(l *threshold.Layer, numbers []byte) {
	if age := l.Age(); d.seen == 0 || d.at != age {
		if d.measure { // what is left of the step that was measured
			stride := strideOf(l.Len())
			n, sum := l.SampleResidual(stride)
			step := d.squares
			if d.last.Step > 0 {
				step = d.last.Step + (d.squares-d.last.Step)/stepsMean
			}
			d.last = Delay{n * stride, sum * float64(stride), step}
			l.Adapt(math.Sqrt(d.last.Squares / d.last.Step))
		}
		d.seen, d.at, d.squares = d.seen+1, age, 0
		every := 64
		if l.Adapts() {
			every = 16
		}
		d.measure = d.seen > 1 && d.seen&(d.seen-1) == 0 || d.seen%every == 0
	}
	if d.measure {
		d.squares += squares(l.Kind(), numbers)
	}
}

// delay returns the newest Delay or, of a layer that is being emptied, what there is now.
func (d *delayMeter) delay(l *threshold.Layer, emptied bool) Delay {
	if !emptied {
		return d.last
	}
	n, sum := l.Residual()
	return Delay{n, sum, d.last.Step}
}

// squares estimates the sum of the squares of numbers, without those that are not finite.
func squares(k element.Kind, numbers []byte) (sum float64) {
	n := len(numbers) / k.Size()
	stride := strideOf(n)
	for i := 0; i < n; i += stride {
		if x := k.At(numbers, i); x-x == 0 {
			sum += x * x
		}
	}
	return sum * float64(stride)
}

// delay returns the Delay of all layers of a stream. The caller holds s.mu.
func (s *stream) delay(emptied bool) (all Delay) {
	s.guarded(func() {
		for l := range maps.Values(s.dense) {
			all.addDelay(l.meter.delay(l.Layer, emptied))
		}
		for l := range maps.Values(s.narrow) {
			all.addDelay(l.meter.delay(l.Layer, emptied))
		}
	})
	return all
}

// DelayOf returns how much of a job's pushes is held back here; of those of no known job if job is
// empty. emptied says that no rule holds anything back any more: then it is what there is now, and
// else as of the last measurement.
func (c *Codec) DelayOf(job string, emptied bool) (all Delay) {
	byOrigin := map[string]bool{} // whether it is of the job
	for o, st := range c.streamsOf("", "") {
		of, known := byOrigin[o.origin]
		if !known {
			of = c.jobOf(o.origin) == job
			byOrigin[o.origin] = of
		}
		if !of {
			continue
		}
		st.mu.Lock()
		all.addDelay(st.delay(emptied))
		st.mu.Unlock()
	}
	return all
}
