package life

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/hoststest"
)

// At rest, when no job has run for a while, a service may hold this much more
// than it did at rest before. A proxy keeps the pipes in which it spliced until
// the second garbage collection, which comes four minutes later at rest, and its
// links to and from the sites of each other host, by IPv4 and IPv6, once keys of a
// job may have moved there.
const (
	siteLinks = 2 * 2 * (hostCount - 1)
	// journals are, for each name of a job and host, where its keys are and what waits
	// of its worker's requests: both are kept once keys may have moved.
	journals        = 2 * 2 * slots * hostCount
	moreDescriptors = siteLinks + 12 // other than of pipes
	morePipes       = 96             // descriptors
	moreGoroutines  = 16
	moreMemory      = 96 << 20
	moreFiles       = journals + 24
	moreBytes       = 8 << 20
	// setAside is how many files of a job's state are kept to be looked at where
	// one was damaged.
	setAside = 8
)

// mostMemory is how many bytes a service may hold at any time.
const mostMemory = 400 << 20

// rest is what the fleet holds when no job runs.
type rest struct {
	services map[string]held
	pins     []string // below each host's folder
	cgroups  []string
	names    []string // of network namespaces
	files    int      // of the proxies' states
	bytes    int64
	closed   int // cgroups whose connects fail without a proxy, as told by the proxies
}

// held is what a service holds. Descriptors are those other than pipes', of which sockets are a
// part.
type held struct {
	descriptors, sockets, pipes, maps, goroutines int
	memory                                        int // resident, in bytes, of which are:
	anonymous, file, shared                       int
	heap, heapIdle                                int // in use, and kept from the system
	waiting                                       int // bytes of files, mapped, with what waits of pushes
}

// pages are the ports of the pages by kind of service.
var pages = map[string]int{agent: agentHTTP, proxy: proxyHTTP, planner: plannerHTTP}

// rest looks at what the fleet holds.
func (f *fleet) rest(ctx context.Context) (r rest, err error) {
	r.services = map[string]held{}
	for _, s := range f.services() {
		h, err := f.held(s)
		if err != nil {
			return r, fmt.Errorf("%s: %w", s, err)
		}
		r.services[s.String()] = h
	}
	for i, s := range f.sidecars {
		state, err := f.connections(i)
		if err != nil {
			return r, fmt.Errorf("%s: %w", s.proxy, err)
		}
		if state.Guard != nil {
			r.closed += state.Guard.Closed + state.Guard.Pending
		}
		files, err := filesIn(s.state)
		if err != nil {
			return r, err
		}
		for _, name := range files {
			// What waited of pushes is kept for five minutes after its worker has
			// gone, within --codec-memory.
			if filepath.Base(filepath.Dir(name)) == values.Folder {
				continue
			}
			if info, err := os.Stat(name); err == nil {
				r.files, r.bytes = r.files+1, r.bytes+info.Size()
			}
		}
		pins, err := filesIn(s.pins)
		if err != nil {
			return r, err
		}
		r.pins = append(r.pins, pins...)
	}
	// A job's processes are gone, so no cgroup of theirs may be left that an agent made.
	r.cgroups, err = below(f.net.Cgroup())
	if err != nil {
		return r, err
	}
	r.names, err = filepath.Glob(filepath.Join("/run/netns", filepath.Base(f.net.Cgroup())[:len(filepath.Base(f.net.Cgroup()))-len("net")]+"*"))
	return r, err
}

// below returns all folders in a folder, at any depth.
func below(dir string) (all []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, filepath.Join(dir, e.Name()))
			more, err := below(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		}
	}
	return all, err
}

// held looks at what a service holds. It fails if the service has no process or does not
// answer.
func (f *fleet) held(s *service) (h held, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", s.Current().Pid())
	files, err := os.ReadDir(dir)
	if err != nil {
		return h, err
	}
	for _, file := range files {
		to, err := os.Readlink(filepath.Join(dir, file.Name()))
		if err != nil {
			continue // it has closed meanwhile
		}
		if filepath.Base(filepath.Dir(to)) == values.Folder { // as for the files themselves
			if info, err := os.Stat(to); err == nil { // else it was removed, and holds memory for nothing
				h.waiting += int(info.Size())
			}
			continue
		}
		h.descriptors++
		switch {
		case strings.Contains(to, "bpf-map"):
			h.maps++
		case strings.HasPrefix(to, "socket:"):
			h.sockets++
		case strings.HasPrefix(to, "pipe:"):
			h.pipes++
			h.descriptors--
		}
	}
	goroutines, err := hoststest.Metric(s.Host, pages[s.Group], "go_goroutines")
	h.goroutines, h.memory = int(goroutines), s.status("VmRSS")
	h.anonymous, h.file, h.shared = s.status("RssAnon"), s.status("RssFile"), s.status("RssShmem")
	for name, to := range map[string]*int{"go_memstats_heap_inuse_bytes": &h.heap, "go_memstats_heap_idle_bytes": &h.heapIdle} {
		n, failed := hoststest.Metric(s.Host, pages[s.Group], name)
		*to, err = int(n), errors.Join(err, failed)
	}
	released, failed := hoststest.Metric(s.Host, pages[s.Group], "go_memstats_heap_released_bytes")
	// What was given back is no longer the process's.
	h.heapIdle -= int(released)
	return h, errors.Join(err, failed)
}

// String returns it for people.
func (h held) String() string {
	return fmt.Sprintf("%d descriptors, %d of them sockets, and %d of pipes, %d BPF maps, %d goroutines, %d MiB (%d anonymous, %d of files, %d shared; of its heap %d in use, %d kept)",
		h.descriptors, h.sockets, h.pipes, h.maps, h.goroutines, h.memory>>20, h.anonymous>>20, h.file>>20, h.shared>>20, h.heap>>20, h.heapIdle>>20)
}

// awaitRest waits until the fleet holds no more than before, apart from what was set aside when
// state was damaged so many times. Services let go of some things minutes after the last job.
func (f *fleet) awaitRest(ctx context.Context, before rest, damages int) error {
	before.files += damages * setAside
	return f.await(ctx, func() error {
		now, err := f.rest(ctx)
		if err != nil {
			return err
		}
		return now.beyond(before)
	})
}

// beyond returns an error if more is held than before.
func (r rest) beyond(before rest) error {
	var errs []error
	complain := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for name, now := range r.services {
		was := before.services[name]
		more := now.memory - min(now.waiting, now.shared) - was.memory
		if now.descriptors > was.descriptors+moreDescriptors || now.pipes > was.pipes+morePipes || now.maps > was.maps || now.goroutines > was.goroutines+moreGoroutines || more > moreMemory {
			complain("%s holds %v; it was %v", name, now, was)
		}
	}
	for _, x := range []struct {
		what     string
		now, was []string
	}{{"pins", r.pins, before.pins}, {"cgroups", r.cgroups, before.cgroups}, {"network namespaces", r.names, before.names}} {
		for _, name := range x.now {
			if !slices.Contains(x.was, name) {
				complain("there are more %s than before: %s", x.what, name)
			}
		}
	}
	if r.closed > 0 { // an agent that ends leaves them closed
		complain("%d cgroups are still closed, or to be opened, for jobs that have ended", r.closed)
	}
	if r.files > before.files+moreFiles || r.bytes > before.bytes+moreBytes {
		complain("%d files of %d bytes are in the proxies' states; it was %d of %d", r.files, r.bytes, before.files, before.bytes)
	}
	return errors.Join(errs...)
}

// watchMemory notes the most memory that services hold, until the context ends. A service that
// holds too much fails once.
func (l *Life) watchMemory(ctx context.Context) {
	over := map[*service]bool{}
	for pause(ctx, 2*time.Second) {
		for _, s := range l.fleet.services() {
			n := s.status("VmHWM")
			l.ledger.peak(s.Group, n)
			if n > mostMemory && !over[s] {
				over[s] = true
				l.journal.fail("%s held %d MiB", s, n>>20)
			}
		}
	}
}

// watchAdopted counts the connections that agents have made anew, until the context ends. Their
// counters begin anew with each process.
func (l *Life) watchAdopted(ctx context.Context) {
	type counter struct{ agent, adopted int } // which process, and what it counted
	last := map[string]counter{}
	for pause(ctx, time.Second) {
		for _, s := range l.fleet.sidecars {
			pid := s.agent.Current().Pid()
			n, err := hoststest.Metric(s.host, agentHTTP, "psidecar_adopted_total")
			if err != nil || s.agent.Current().Pid() != pid {
				continue
			}
			was := last[s.host.Name]
			if was.agent != pid {
				was = counter{}
			}
			l.ledger.adoptedConnections(int(n) - was.adopted)
			last[s.host.Name] = counter{pid, int(n)}
		}
	}
}

// watchMoves counts the keys that proxies move, the pushes that they sum and the answers that they
// share by key, until the context ends.
func (l *Life) watchMoves(ctx context.Context) {
	last := map[string]uint64{}
	for pause(ctx, time.Second) {
		for i, s := range l.fleet.sidecars {
			state, err := l.fleet.connections(i)
			if err != nil {
				continue
			}
			if a := state.Aggregate; a != nil {
				name := s.host.Name + state.Instance
				l.ledger.summed(a.Sums - last[name])
				last[name] = a.Sums
			}
			if c := state.Shared; c != nil {
				name := s.host.Name + state.Instance + " by key"
				l.ledger.sharedByKey(c.ByKey - last[name])
				last[name] = c.ByKey
			}
			for _, j := range state.Jobs {
				name := s.host.Name + state.Instance + j.Job
				if j.Moved > last[name] {
					l.ledger.movedKeys(j.Moved - last[name])
				}
				last[name] = j.Moved // less where another run has begun
			}
		}
	}
}
