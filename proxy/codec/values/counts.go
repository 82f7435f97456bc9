package values

import "sync/atomic"

// Reason says why values passed unchanged, or names another event that a user may
// want to know of. Every drop and every exception has one; they are part of the
// metrics.
type Reason string

// The reasons.
const (
	ReasonEmpty      Reason = "empty"        // no keys or no values; not counted
	ReasonType       Reason = "type"         // the values' type is unknown, or none that the rule names
	ReasonShape      Reason = "shape"        // values do not divide by keys, or not into numbers, or a key comes twice or out of order
	ReasonLength     Reason = "length"       // a layer has another length than before
	ReasonIdentity   Reason = "identity"     // the sender is unknown: no READY with a node id
	ReasonMemory     Reason = "memory"       // --codec-memory is used up
	ReasonMemoryOnly Reason = "memory-only"  // residuals are in memory alone, as the state folder has no room or cannot be written: a kill would lose them
	ReasonDamaged    Reason = "damaged"      // a file of residuals cannot be read, or was truncated while in use: they are lost
	ReasonStreams    Reason = "streams"      // too many workers and servers
	ReasonNotFinite  Reason = "not-finite"   // NaN or infinity: the values go at once, nothing of them waits
	ReasonNotRounded Reason = "not-rounded"  // numbers that cannot be quantized (NaN, infinity, at the ends of their range) go as they are
	ReasonLarge      Reason = "large"        // the message is larger than the proxy holds
	ReasonRepeat     Reason = "repeat"       // PS_RESEND repeated a request, which went as it had before
	ReasonForgotten  Reason = "not-kept"     // a request too large to be recognised, were it repeated
	ReasonRestarted  Reason = "restarted"    // a new process has an old one's node id: the old one's residuals are dropped
	ReasonAbandoned  Reason = "abandoned"    // a worker went without ending in order: its residuals are dropped
	ReasonNoGain     Reason = "no-gain"      // coded it would be no smaller
	ReasonUnpulled   Reason = "unpulled"     // keys that their worker has not pulled, or pushes for the first time: the pushed values may be initial ones, and go whole
	ReasonCommands   Reason = "commands"     // the job uses several commands (cmd), each of which may have a table of its own: only the first one's values wait or are compared, unless commands number steps
	ReasonAssigned   Reason = "assigned"     // servers that assign pushes would store zeros for what is left out: the threshold or slim is off
	ReasonNotSent    Reason = "not-sent"     // a worker ended with residuals that cannot be sent, since its servers are not known to add pushes up (--handler add)
	ReasonUnheld     Reason = "unheld"       // a worker's last barrier bypassed this proxy: its residuals were sent at once, and may have come too late
	ReasonPeer       Reason = "peer"         // the other end's proxy is older and does not know the form that the rule asks for
	ReasonMoved      Reason = "moved"        // keys that have moved: the next pull of each goes whole
	ReasonUnpaired   Reason = "unpaired"     // pulls of activations whose answers come whole: their worker has not pushed what it pulled before, or this is no pull like those
	ReasonUnmasked   Reason = "unmasked"     // pushes for activations, or some of their keys, that go whole: no answer by rows came before, or its mask is lost
	ReasonUnasked    Reason = "not-asked"    // answers that come whole, as the worker's proxy wants it: there it is counted why
	ReasonAlike      Reason = "alike"        // pulls of activations, under one number by two workers, whose answers cannot be distinguished: they come whole
	ReasonFlushed    Reason = "flushed"      // a layer's rest went out in order
	ReasonNoFlush    Reason = "flush-failed" // a layer's rest could not be sent in order
)

// Reasons lists all that are counted.
var Reasons = []Reason{
	ReasonType, ReasonShape, ReasonLength, ReasonIdentity, ReasonMemory, ReasonMemoryOnly, ReasonDamaged, ReasonStreams, ReasonNotFinite, ReasonNotRounded, ReasonLarge,
	ReasonRepeat, ReasonForgotten, ReasonRestarted, ReasonAbandoned, ReasonNoGain, ReasonUnpulled, ReasonCommands, ReasonAssigned, ReasonNotSent, ReasonUnheld, ReasonPeer, ReasonMoved, ReasonUnpaired, ReasonUnmasked, ReasonUnasked, ReasonAlike, ReasonFlushed, ReasonNoFlush,
}

// Forms in which values can go on a link.
const (
	formThreshold = iota
	formSlimPush
	formQuantize
	formSlimPull
	formUnchanged
	formPullThreshold
	formPullQuantize
	formWire
	formActivations // of pulls, or of pushes where these bring them
	formMasked      // gradients for activations
	formPlain       // values that go unchanged in a message with a section
	forms
)

var formNames = [forms]string{"threshold", "slim-push", "quantize", "slim-pull", "unchanged", "pull-threshold", "pull-quantize", "wire", "activations", "masked", "plain"}

// FormCount is what was done in one form.
type FormCount struct {
	Form    string `json:"form"`    // threshold, slim-push, quantize, slim-pull, unchanged, pull-threshold, pull-quantize, wire, activations, masked, plain
	Layers  uint64 `json:"layers"`  // times that a layer was coded
	Values  uint64 `json:"values"`  // of those layers
	Sent    uint64 `json:"sent"`    // of the values
	Bytes   uint64 `json:"bytes"`   // of the values as the job has them
	Encoded uint64 `json:"encoded"` // bytes that took their place
}

type formCount struct{ layers, values, sent, bytes, encoded atomic.Uint64 }

// counters are a codec's, safe for concurrent use. The maps do not change after they are
// made.
type counters struct {
	forms   [forms]formCount
	reasons map[Reason]*atomic.Uint64
}

func newCounters() *counters {
	c := &counters{reasons: map[Reason]*atomic.Uint64{}}
	for _, r := range Reasons {
		c.reasons[r] = new(atomic.Uint64)
	}
	return c
}

// why counts a reason. ReasonEmpty is not in the list and not counted.
func (c *counters) why(r Reason) {
	if n := c.reasons[r]; n != nil {
		n.Add(1)
	}
}

func (c *counters) flushed(n int) { c.reasons[ReasonFlushed].Add(uint64(n)) }

// coded counts a piece: how many values it has, how many of these went, and its bytes
// before and after.
func (c *counters) coded(form, values, sent, bytes, encoded int) {
	f := &c.forms[form]
	f.layers.Add(1)
	f.values.Add(uint64(values))
	f.sent.Add(uint64(sent))
	f.bytes.Add(uint64(bytes))
	f.encoded.Add(uint64(encoded))
}

// Counts are what a codec has done since the start.
type Counts struct {
	Forms      []FormCount       `json:"forms"`       // only those in use
	Reasons    map[Reason]uint64 `json:"reasons"`     // times; only those that occurred
	StateBytes int64             `json:"state_bytes"` // of residuals, copies and remembered requests
	Streams    int               `json:"streams"`     // pairs of worker and server
}

// StillWaiting returns how many values wait, over all streams. It reads all residuals,
// under each stream's lock.
func (c *Codec) StillWaiting() (values int) {
	for _, st := range c.streamsOf("", "") {
		st.mu.Lock()
		n, _ := st.residual()
		st.mu.Unlock()
		values += n
	}
	return values
}

// Counts returns the figures so far.
func (c *Codec) Counts() Counts {
	counts := Counts{Reasons: map[Reason]uint64{}, StateBytes: c.budget.used.Load(), Forms: []FormCount{}}
	for i := range c.counts.forms {
		f := &c.counts.forms[i]
		if n := f.layers.Load(); n > 0 {
			counts.Forms = append(counts.Forms, FormCount{
				Form: formNames[i], Layers: n, Values: f.values.Load(), Sent: f.sent.Load(), Bytes: f.bytes.Load(), Encoded: f.encoded.Load(),
			})
		}
	}
	for _, r := range Reasons {
		if n := c.counts.reasons[r].Load(); n > 0 {
			counts.Reasons[r] = n
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	counts.Streams = len(c.streams)
	return counts
}
