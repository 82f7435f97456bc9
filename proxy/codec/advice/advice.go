// Package advice estimates which share of a job's traffic each codec for values would
// save, and how large the residual of its gradients would be, without touching the
// job. A [Study] is shown messages, of a recording or of a proxy's links, and puts
// each through the codec of every [Candidate] as if on a link of its own. The result
// is a [Report], as a table or a plot. `psidecar simulate --codecs` and the proxy
// call it.
//
// Every candidate has a complete codec of package values with its own state, so that
// the figures are those of the real encoder. The cost is that of encoding each
// message once for each candidate, and the memory up to the given bound for each.
//
// Figures are of bytes alone. A candidate that is lossy changes the training, so the
// messages that a job would send under it may differ from those that are shown.
package advice

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"sync"
	"text/tabwriter"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Candidate is a named list of rules.
type Candidate struct {
	Name  string
	Rules []values.Rule
}

// Candidates returns those of every report: the lossless ones, thresholds at the sparsities
// of DCT's table 2 and 99%, QSGD, EF21-P, DCT-MP, values of 16 bits, and Slim-DP as its
// authors use it.
func Candidates() []Candidate {
	all := []Candidate{{Name: "compact"}, {"unchanged", []values.Rule{{Unchanged: true}}}}
	for _, eta := range []float64{0.75, 0.9, 0.95, 0.98, 0.99, 0.995} {
		all = append(all, Candidate{fmt.Sprintf("threshold %g", eta), []values.Rule{{Threshold: eta}}})
	}
	return append(all,
		Candidate{"threshold 0.99, quantize 8", []values.Rule{{Threshold: 0.99, Quantize: 8}}},
		Candidate{"quantize 8", []values.Rule{{Quantize: 8}}},
		Candidate{"quantize 4", []values.Rule{{Quantize: 4}}},
		Candidate{"pull-threshold 0.95", []values.Rule{{PullThreshold: 0.95}}},
		Candidate{"pull-quantize 4", []values.Rule{{PullQuantize: 4}}},
		Candidate{"threshold 0.99, pull-threshold 0.95", []values.Rule{{Threshold: 0.99, PullThreshold: 0.95}}},
		Candidate{"threshold-activations 0.95", []values.Rule{{Activations: 0.95}}},
		Candidate{"wire bf16", []values.Rule{{Wire: "bf16"}}},
		Candidate{"slim 0.3,0.15", []values.Rule{{Slim: &values.Slim{Alpha: 0.3, Epsilon: 0.15}}}})
}

// maxLinks bounds the connections that are followed. Messages of further ones are counted
// as missed.
const maxLinks = 1024

// Study tries all candidates. It is safe for concurrent use, one message at a time;
// messages of one connection must be shown in their order, since the codecs' state
// depends on it. Connections are distinguished by name and never forgotten.
type Study struct {
	mu       sync.Mutex // guards the rest
	trials   []*trial
	links    map[string]uint64 // numbers of connections, which stand for links
	detector map[string]*pslite.Detector
	missed   int
	pushes   int             // messages
	numbers  int             // of these, with values of a known kind
	chars    string          // the kind of values of type CHAR and OTHER, by the first command that says it
	untyped  int             // bytes of values of an unknown kind
	pushers  map[string]bool // connections with pushes
	squares  float64         // of all pushed values
	sides    [2]side         // pushes and pulls: bytes of the messages
}

// side sums the bytes of pushes, or of pulls, before and after encoding.
type side struct{ plain, encoded int }

// trial is one candidate with its codec and the links made so far, by connection. All
// of it is guarded by the Study's mutex.
type trial struct {
	Candidate
	codec   *values.Codec
	senders map[string]relay.Sender
	// receivers are the other ends, for candidates whose encoder depends on what the other
	// end decoded; others have none.
	receivers map[string]relay.Receiver
	memory    *relay.Memory // of receivers
	sides     [2]side
}

// pairs reports whether the candidate needs both ends of a link: thresholded activations of
// a pull decide which gradients of the next push go.
func (t *trial) pairs() bool {
	return slices.ContainsFunc(t.Rules, func(r values.Rule) bool { return r.Activations > 0 })
}

// running returns the rules as they apply to a job that has run for long: it has made the
// pushes that may be initial values, which go whole, and a short recording must not count
// as if it were beginning. chars is the kind of values of type CHAR and OTHER; empty:
// unknown.
func running(rules []values.Rule, chars string) []values.Rule {
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].Unpulled, rules[i].Elements = true, chars
	}
	return rules
}

// NewStudy returns a study of all candidates, each of which keeps at most stateBytes of
// state.
func NewStudy(stateBytes int64) (*Study, error) {
	s := &Study{links: map[string]uint64{}, detector: map[string]*pslite.Detector{}, pushers: map[string]bool{}}
	for _, c := range Candidates() {
		codec, err := values.New(values.Options{Compact: compact.DefaultLimits, StateBytes: stateBytes, Rules: running(c.Rules, "")})
		if err != nil {
			return nil, fmt.Errorf("candidate %s: %w", c.Name, err)
		}
		s.trials = append(s.trials, &trial{Candidate: c, codec: codec, senders: map[string]relay.Sender{}, receivers: map[string]relay.Receiver{}, memory: relay.NewMemory(stateBytes)})
	}
	return s, nil
}

// Message shows the study a message with all of its frames, which are not kept.
// connection names the connection and the direction in which the message went; node
// is the sender's id. It takes as long as encoding the message once for each
// candidate. An error means that a codec is broken, since no codec may fail on a
// message of a job.
func (s *Study) Message(connection string, node int32, frames [][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	det := s.detector[connection]
	if det == nil {
		if len(s.links) >= maxLinks {
			s.missed++
			return nil
		}
		det = &pslite.Detector{}
		s.detector[connection], s.links[connection] = det, uint64(len(s.links)+1)
	}
	var m pslite.Message
	if _, err := m.Decode(det, frames); err != nil || !m.Meta.Data() {
		return nil // no codec changes control messages
	}
	// Answers to pushes count with pushes, those to pulls with pulls.
	at := 0
	kind, known, err := s.kindOf(&m)
	if err != nil {
		return err
	}
	if !known {
		s.untyped += len(m.Values().Bytes)
	}
	switch {
	case m.Meta.Push && m.Meta.Request:
		s.pushes++
		if known {
			s.pushed(connection, kind, m.Values().Bytes)
		}
	case m.Meta.Pull:
		at = 1
	}
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	s.sides[at].plain += size
	for _, t := range s.trials {
		n, err := t.try(connection, s.links[connection], node, *det, frames)
		if err != nil {
			return fmt.Errorf("candidate %s: %w", t.Name, err)
		}
		t.sides[at].encoded += n
	}
	return nil
}

// kindOf returns the kind of a message's values. The first command of a message of bytes that
// says one has all candidates tried as with --char-values of that kind.
func (s *Study) kindOf(m *pslite.Message) (kind element.Kind, known bool, err error) {
	switch m.Values().Type {
	case pslite.Float:
		return element.Float32, true, nil
	case pslite.Double:
		return element.Float64, true, nil
	case pslite.Char, pslite.Other:
	default:
		return 0, false, nil
	}
	kind, known = element.OfCommand(m.Meta.Head)
	if known && s.chars == "" && len(m.Values().Bytes) > 0 {
		s.chars = kind.String()
		for _, t := range s.trials {
			if err := t.codec.SetRules(running(t.Rules, s.chars)); err != nil {
				return 0, false, fmt.Errorf("candidate %s: %w", t.Name, err)
			}
		}
	}
	return kind, known && kind.String() == s.chars, nil
}

// pushed adds up the squares of a push of values, for Report.StepSquares. Values that are
// not finite are left out.
func (s *Study) pushed(connection string, kind element.Kind, values []byte) {
	s.numbers++
	s.pushers[connection] = true
	for i := range len(values) / kind.Size() {
		if x := kind.At(values, i); x-x == 0 {
			s.squares += x * x
		}
	}
}

// try puts a message through the candidate's codec and returns how many bytes would
// be sent: the head and the frames that go along unchanged, without the framing of
// the link. If the codec leaves the message alone that is the message's own size.
func (t *trial) try(connection string, number uint64, node int32, det pslite.Detector, frames [][]byte) (int, error) {
	sender := t.senders[connection]
	if sender == nil {
		// A link of its own for each connection, to a server of its own: residuals
		// are kept by worker and server.
		var address [16]byte
		binary.BigEndian.PutUint64(address[8:], number)
		l := relay.Link{ID: number, Dialer: relay.Instance{1}, Acceptor: relay.Instance{1}, Dialed: true, HeadLimit: relay.HeadLimit,
			Destination: netip.AddrPortFrom(netip.AddrFrom16(address), 1), Origin: connection}
		var err error
		// The codec is offered what it offers itself: the other end is of the same
		// version.
		if sender, _, err = t.codec.Open(l, t.codec.Offer()); err != nil {
			return 0, err
		}
		sender.(relay.Greeter).Ready(zmtp.Ready{Identity: pslite.AppendIdentity(nil, node)})
		t.senders[connection] = sender
		if t.pairs() {
			l.Dialed, l.Memory = false, t.memory
			if _, t.receivers[connection], err = t.codec.Open(l, t.codec.Offer()); err != nil {
				return 0, err
			}
		}
	}
	held := make([][]byte, len(frames))
	plainSize := 0
	for i, f := range frames {
		held[i] = append([]byte(nil), f...) // the codec may change values in place
		plainSize += len(f)
	}
	head, plain, ok := sender.Encode(nil, &relay.Message{Frames: held, Detector: &det})
	if !ok {
		return plainSize, nil
	}
	if r := t.receivers[connection]; r != nil {
		if _, _, err := r.Decode(head); err != nil {
			return 0, err
		}
		if lends, ok := r.(relay.Releaser); ok {
			lends.Release()
		}
	}
	n := len(head)
	for i, f := range held {
		if plain&(1<<i) != 0 {
			n += len(f)
		}
	}
	return n, nil
}

// Row is the result of one candidate. Pushes and Pulls are 1 for a codec that saves
// nothing.
type Row struct {
	Codec  string  `json:"codec"`
	Pushes float64 `json:"pushes"` // bytes after by bytes before
	Pulls  float64 `json:"pulls"`
	Saved  float64 `json:"saved"` // share of all bytes
	// Waits is the norm of the residual at the end, in units of the norm of one
	// step's pushes: a codec that holds back many steps delays learning.
	Waits float64 `json:"waits"`
}

// Report is the result of a study.
type Report struct {
	PushBytes int `json:"push_bytes"` // of messages as the job has them; answers to pushes too
	PullBytes int `json:"pull_bytes"`
	Pushes    int `json:"pushes"`
	Missed    int `json:"missed"` // messages of connections beyond the bound
	// CharValues is what values of type CHAR and OTHER were taken for, since the commands of
	// MXNet and BytePS say it; empty: there were none such. UntypedBytes are those of values
	// whose kind is not known: no codec for values changes them.
	CharValues   string `json:"char_values,omitempty"`
	UntypedBytes int    `json:"untyped_bytes"`
	// StepSquares is the sum of squares that one step of all workers pushes.
	StepSquares float64 `json:"step_squares"`
	Codecs      []Row   `json:"codecs"`
}

// Report returns the figures so far. The study may go on; a later report includes
// them.
func (s *Study) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Report{PushBytes: s.sides[0].plain, PullBytes: s.sides[1].plain, Pushes: s.pushes, Missed: s.missed, CharValues: s.chars, UntypedBytes: s.untyped}
	// The mean over pushes, once for each connection that pushes: a step has a push
	// of each worker to each server.
	step := s.squares / max(1, float64(s.numbers)) * float64(len(s.pushers))
	r.StepSquares = step
	for _, t := range s.trials {
		row := Row{Codec: t.Name,
			Pushes: float64(t.sides[0].encoded) / float64(max(1, s.sides[0].plain)),
			Pulls:  float64(t.sides[1].encoded) / float64(max(1, s.sides[1].plain)),
			Saved:  1 - float64(t.sides[0].encoded+t.sides[1].encoded)/float64(max(1, s.sides[0].plain+s.sides[1].plain))}
		if step > 0 {
			row.Waits = math.Sqrt(t.codec.Waiting() / step)
		}
		r.Codecs = append(r.Codecs, row)
	}
	return r
}

// Print writes the report as a table.
func (r *Report) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d bytes of pushes in %d messages, %d bytes of pulls\n", r.PushBytes, r.Pushes, r.PullBytes)
	if r.Missed > 0 {
		fmt.Fprintf(w, "%d messages of connections beyond the limit of %d were omitted\n", r.Missed, maxLinks)
	}
	fmt.Fprintln(w, "codec\tpushes to\tpulls to\tsaved\tresidual, in steps\t")
	for _, c := range r.Codecs {
		fmt.Fprintf(w, "%s\t%.1f%%\t%.1f%%\t%.1f%%\t%.1f\t\n", c.Codec, 100*c.Pushes, 100*c.Pulls, 100*c.Saved, c.Waits)
	}
	return w.Flush()
}
