package bpf

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Options of a [Capture]. The zero value is a good start. Sizes are fixed at Open.
type Options struct {
	// RingBytes is the size of the ring buffer, a power of two of at least
	// 64 KiB; 0 means 32 MiB.
	RingBytes int
	// Streams is how many streams can be followed at a time, two for a connection if both
	// directions are watched. Each costs about 800 bytes of kernel memory; 0 means 16,384.
	// Foreign connections do not count.
	Streams int
	// Ingress also watches what the processes receive. Segments that arrive out of order leave
	// gaps in such a stream; egress sees them in order.
	Ingress IngressMode
	// IngressLoopback watches ingress on loopback interfaces too, where the same bytes are seen
	// as egress if the sender is watched.
	IngressLoopback bool
	// MeasureCost makes the kernel measure the programs' run time while the capture is open
	// ([Capture.ProgramStats]). That costs some tens of nanoseconds a run itself, for all BPF
	// programs of the host.
	MeasureCost bool
	Sampling    Sampling
}

// IngressMode selects the frames that are copied from received segments.
type IngressMode uint8

// Modes of watching ingress.
const (
	// IngressOff: ingress is not watched.
	IngressOff IngressMode = iota
	// IngressMetas: only the meta frames of answers and of control messages are
	// copied, and no KindEnd is reported for answers, so that a host knows when its
	// own requests are answered. What cannot be followed is counted as
	// ReasonUntimed.
	IngressMetas
	// IngressAll: as much as of egress, for hosts that are alone in being
	// watched.
	IngressAll
)

var ingressModes = [...]string{"off", "metas", "all"}

// String returns the name that [ParseIngressMode] reads.
func (m IngressMode) String() string {
	if int(m) < len(ingressModes) {
		return ingressModes[m]
	}
	return fmt.Sprintf("ingress mode %d", uint8(m))
}

// ParseIngressMode reads a mode's name: off, metas or all.
func ParseIngressMode(name string) (IngressMode, error) {
	for i, known := range ingressModes {
		if name == known {
			return IngressMode(i), nil
		}
	}
	return 0, fmt.Errorf("%q: want one of %s", name, strings.Join(ingressModes[:], ", "))
}

const (
	defaultRingBytes = 32 << 20
	defaultStreams   = 16384
	minRingBytes     = 64 << 10
	slotsPerCPU      = 4  // SLOTS in maps.h
	minSlots         = 16 // SLOT_TRIES in maps.h
)

// normal fills in defaults and checks bounds.
func (o Options) normal() (Options, error) {
	if o.RingBytes == 0 {
		o.RingBytes = defaultRingBytes
	}
	if o.Streams == 0 {
		o.Streams = defaultStreams
	}
	if o.RingBytes < minRingBytes || o.RingBytes > 1<<30 || bits.OnesCount(uint(o.RingBytes)) != 1 {
		return o, fmt.Errorf("ring buffer of %d bytes: want a power of two from %d to %d", o.RingBytes, minRingBytes, 1<<30)
	}
	if o.Ingress > IngressAll {
		return o, fmt.Errorf("%v: want IngressOff, IngressMetas or IngressAll", o.Ingress)
	}
	if o.Streams < 1 || o.Streams > 1<<22 {
		return o, fmt.Errorf("%d streams: want 1 to %d", o.Streams, 1<<22)
	}
	return o, nil
}

// A Capture is the loaded programs and their maps. Its methods may be called from several
// goroutines, except that [Capture.Read] must not be called concurrently with itself or with
// Close. Locks are taken in the order sweepMu, mu; the agent's lock comes before both.
type Capture struct {
	options Options
	objects objects
	ring    *ring
	stats   interface{ Close() error } // run time statistics; nil without MeasureCost

	mu       sync.Mutex // guards the fields below, and keeps the maps open while they are read
	closed   bool
	config   captureConfig          // as the programs have it
	attached map[string][]link.Link // by absolute cgroup path; none is within another
	rated    map[StreamID]bool      // streams with an entry in the map of rates

	batches map[StreamID]uint32 // sequence number of the next batch; used by Read alone

	sweepMu sync.Mutex               // guards the fields below; taken before mu
	now     func() time.Time         // for tests
	quiet   map[StreamID]quietStream // the streams of the last call of Streams
	gone    []StreamID               // reported as Gone, to be dropped from batches by Read
}

// Open loads the programs without attaching them. It needs CAP_BPF and CAP_NET_ADMIN; the error
// names a right that is missing. Close releases everything.
func Open(o Options) (*Capture, error) { return open(o, false) }

// open is Open. With keyByAddress, streams are told apart by their addresses instead of their
// socket cookies: BPF_PROG_TEST_RUN gives every packet a socket of its own.
func open(o Options, keyByAddress bool) (*Capture, error) {
	o, err := o.normal()
	if err != nil {
		return nil, err
	}
	// Kernels before 5.11 charge maps to the memlock limit.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raising the memlock limit: %w", err)
	}
	c := &Capture{options: o, attached: map[string][]link.Link{}, rated: map[StreamID]bool{},
		batches: map[StreamID]uint32{}, now: time.Now, quiet: map[StreamID]quietStream{}}
	if c.objects, err = loadObjects(o, keyByAddress); err != nil {
		return nil, err
	}
	if c.ring, err = openRing(c.objects.events, o.RingBytes); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if o.MeasureCost {
		if c.stats, err = ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME)); err != nil {
			return nil, errors.Join(fmt.Errorf("turning on run time statistics: %w", err), c.Close())
		}
	}
	// The programs do nothing useful before they find settings.
	if err := c.SetSampling(o.Sampling); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Attach watches the sockets of all processes in a cgroup, given by its path in a cgroup v2
// mount, and in the cgroups below it. Existing connections are synchronized once a message is
// recognized in them. Programs that others have attached there stay and run too. A cgroup above
// or below one that is watched is refused, since its segments would be seen twice.
func (c *Capture) Attach(cgroup string) error {
	path, err := filepath.Abs(cgroup)
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", cgroup, err)
	}
	// Held while attaching, so that two calls cannot watch the same segments.
	c.mu.Lock()
	defer c.mu.Unlock()
	for other := range c.attached {
		if within(path, other) || within(other, path) {
			return fmt.Errorf("cgroup %s: %s is already watched, and its segments would be counted twice", path, other)
		}
	}
	programs := map[ebpf.AttachType]*ebpf.Program{ebpf.AttachCGroupInetEgress: c.objects.egress}
	if c.options.Ingress != IngressOff {
		programs[ebpf.AttachCGroupInetIngress] = c.objects.ingress
	}
	var links []link.Link
	for hook, program := range programs {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: path, Attach: hook, Program: program})
		if err != nil {
			// Half of it would be worse than nothing: what is attached already is detached.
			return errors.Join(fmt.Errorf("attaching %v to cgroup %s (cgroup v2?): %w", hook, path, err), closeLinks(links))
		}
		links = append(links, l)
	}
	c.attached[path] = links
	return nil
}

// within reports whether path a is b or below it.
func within(a, b string) bool {
	return a == b || strings.HasPrefix(a, strings.TrimSuffix(b, "/")+"/")
}

// Detach stops watching a cgroup that was attached. The error wraps os.ErrNotExist if it is not
// watched. Its streams stay in the table until Streams finds them idle.
func (c *Capture) Detach(cgroup string) error {
	path, err := filepath.Abs(cgroup)
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", cgroup, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	links, ok := c.attached[path]
	if !ok {
		return fmt.Errorf("cgroup %s is not watched: %w", path, os.ErrNotExist)
	}
	// Even if closing fails: closing a link again would not succeed either.
	delete(c.attached, path)
	return closeLinks(links)
}

// closeLinks detaches programs. It goes on after an error, so that none stays attached.
func closeLinks(links []link.Link) error {
	var failed error
	for _, l := range links {
		failed = errors.Join(failed, l.Close())
	}
	return failed
}

// SetSampling changes the sampling of all streams without a rate of their own, from the next
// message on.
func (c *Capture) SetSampling(s Sampling) error {
	s = s.normal()
	// The whole struct is written at once; each run of the programs copies it, so a segment is
	// handled under one configuration.
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config = captureConfig{
		Rests:  c.config.Rests,
		Window: s.Window, OneIn: s.OneIn,
		AnswerKeys:          flag(s.AnswerKeys),
		SkipLoopbackIngress: flag(!c.options.IngressLoopback),
		IngressMetas:        flag(c.options.Ingress == IngressMetas),
		WakeBytes:           uint32(c.options.RingBytes / 16), // the reader is woken 16 times a ring; waking costs more than reading
	}
	return c.putConfig()
}

// putConfig writes the programs' settings. The caller holds c.mu.
func (c *Capture) putConfig() error {
	if err := c.objects.settings.Put(uint32(0), c.config); err != nil {
		return fmt.Errorf("writing the programs' settings: %w", err)
	}
	return nil
}

// flag returns a truth value as the C programs have it.
func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// Counts returns the counters since Open, summed over all CPUs. They are not a snapshot: the
// programs go on counting meanwhile.
func (c *Capture) Counts() (Counts, error) {
	var sums Counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return sums, fmt.Errorf("reading the counters: %w", os.ErrClosed)
	}
	for r := range sums {
		var perCPU []captureCount
		if err := c.objects.counts.Lookup(uint32(r), &perCPU); err != nil {
			return sums, fmt.Errorf("reading counter %s: %w", Reason(r), err)
		}
		for _, n := range perCPU {
			sums[r].Events += n.Events
			sums[r].Bytes += n.Bytes
		}
	}
	return sums, nil
}

// Unread returns the time, by CLOCK_MONOTONIC, of the oldest batch in the ring buffer that Read
// has not returned; ok is false if there is none. It tells how far the reader is behind.
func (c *Capture) Unread() (nanos uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, false
	}
	return c.ring.oldest()
}

// Close detaches the programs and releases them. Read must have returned. Counts, Unread and
// ProgramStats may still be called, and report that the capture is closed.
func (c *Capture) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// First, so that what is called from now on does not touch a map that is gone.
	c.closed = true
	var failed error
	for _, links := range c.attached {
		failed = errors.Join(failed, closeLinks(links))
	}
	clear(c.attached)
	if c.stats != nil {
		failed = errors.Join(failed, c.stats.Close())
	}
	if c.ring != nil {
		failed = errors.Join(failed, c.ring.close())
	}
	return errors.Join(failed, c.objects.Close())
}
