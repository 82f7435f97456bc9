package simulate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/psidecar/psidecar/internal/recording"
)

// maxServers bounds the rank in a server's name, and with it the memory that a recording can
// demand.
const maxServers = 4096

// A survey is what the first reading of all recordings says of the job: its nodes, their hosts, and
// the size of each key's value.
type survey struct {
	// The job asked for; "" for the only one.
	want   string
	job    string
	others map[string]bool
	// By name, in the order of first requests until machines is called, then sorted by name.
	workers map[string]int
	// The highest rank + 1.
	servers int
	size    map[uint64]uint32
	// The size of the first value, which is that of all while they are alike. size has the others.
	all   uint32
	alike bool

	// The workers that have asked and the servers that have answered in the recording being read.
	asked, answered map[string]bool
	workerHost      map[string]string
	serverHost      map[int]string
	hosts           []string
	scratch         []uint32
}

// newSurvey returns a survey of the given job, or of the only one if job is "".
func newSurvey(job string) *survey {
	return &survey{
		want: job, others: map[string]bool{}, workers: map[string]int{}, size: map[uint64]uint32{}, alike: true,
		asked: map[string]bool{}, answered: map[string]bool{}, workerHost: map[string]string{}, serverHost: map[int]string{},
	}
}

// look adds one use. It fails if the recordings have several jobs and none was asked for.
func (s *survey) look(u *recording.Use) error {
	switch {
	case s.want != "" && u.Job != s.want:
		s.others[u.Job] = true
		return nil
	case s.job == "":
		s.job = u.Job
	case s.job != u.Job:
		return fmt.Errorf("the recordings contain jobs %s and %s: select one with --job", s.job, u.Job)
	}
	rank, err := serverRank(u.Server)
	if err != nil {
		return err
	}
	s.servers = max(s.servers, rank+1)
	if u.Answer {
		s.answered[u.Server] = true
	} else {
		s.asked[u.Worker] = true
		if _, ok := s.workers[u.Worker]; !ok {
			s.workers[u.Worker] = len(s.workers)
		}
	}
	s.measure(u)
	return nil
}

// serverRank returns the rank in a server's name. An agent that does not know the rank yet names a
// server by its address.
func serverRank(name string) (int, error) {
	digits, ok := strings.CutPrefix(name, "server")
	rank, err := strconv.Atoi(digits)
	if !ok || err != nil || rank < 0 || rank >= maxServers {
		return 0, fmt.Errorf("a server is called %q in the recording, not by its rank: record for longer, so that it is known", name)
	}
	return rank, nil
}

// measure records the sizes of values. Without lens all values of a request are of equal size; with
// lens they have that many elements each. Only requests and answers that carry values have bytes,
// so the size of a key is known once it was pushed, or its pull was answered.
func (s *survey) measure(u *recording.Use) {
	if u.Bytes == 0 || len(u.Keys) == 0 {
		return
	}
	elements := int64(0)
	for _, n := range u.Lens {
		elements += int64(max(n, 0))
	}
	for i, key := range u.Keys {
		size := uint32(u.Bytes / uint64(len(u.Keys)))
		if u.Lens != nil && elements > 0 {
			size = uint32(uint64(max(u.Lens[i], 0)) * u.Bytes / uint64(elements))
		}
		if s.all == 0 {
			s.all = size
		}
		// Only sizes that differ take memory: a recording may have many millions of keys, whose
		// values are usually alike.
		if size == s.all {
			continue
		}
		s.alike = false
		s.size[key] = max(s.size[key], size)
	}
}

// sizes returns the sizes of the keys' values: a list that is valid until the next call, or nil and
// the size of all.
func (s *survey) sizes(keys []uint64) ([]uint32, uint32) {
	if s.alike {
		return nil, s.all
	}
	s.scratch = slices.Grow(s.scratch[:0], len(keys))[:len(keys)]
	for i, key := range keys {
		size, ok := s.size[key]
		if !ok {
			size = s.all
		}
		s.scratch[i] = size
	}
	return s.scratch, 0
}

// host ends the reading of one recording, which was made on that host. A host records what its own
// nodes send, so workers that asked and servers that answered in it run there.
func (s *survey) host(name string) {
	if !slices.Contains(s.hosts, name) {
		s.hosts = append(s.hosts, name)
	}
	for w := range s.asked {
		s.workerHost[w] = name
	}
	for server := range s.answered {
		if rank, err := serverRank(server); err == nil {
			s.serverHost[rank] = name
		}
	}
	clear(s.asked)
	clear(s.answered)
}

// machines has the machine of each node.
type machines struct {
	count  int
	worker []int // by number
	server []int // by rank
}

// machines returns where the nodes run: on the hosts of the recordings if those are several;
// otherwise, since a recording of one host is of a local job, worker and server of one rank are put
// on a machine together.
func (s *survey) machines() (*machines, error) {
	if len(s.workers) == 0 {
		if s.want != "" {
			return nil, fmt.Errorf("no request of job %s: there are %v", s.want, slices.Sorted(maps.Keys(s.others)))
		}
		return nil, errors.New("the recordings hold no request")
	}
	// Shorter names come first, so worker2 is before worker10.
	names := slices.SortedFunc(maps.Keys(s.workers), func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		// Workers are numbered by name, so that the numbers do not depend on who asked first.
		s.workers[name] = i
	}
	m := &machines{worker: make([]int, len(names)), server: make([]int, s.servers)}
	// With recordings of several hosts, all hosts of the job must have been recorded.
	if len(s.hosts) > 1 {
		m.count = len(s.hosts)
		for i, name := range names {
			m.worker[i] = slices.Index(s.hosts, s.workerHost[name])
		}
		for rank := range m.server {
			host, ok := s.serverHost[rank]
			if !ok {
				return nil, fmt.Errorf("no answer of server %d was recorded, so its host is unknown: record on every host", rank)
			}
			m.server[rank] = slices.Index(s.hosts, host)
		}
		return m, nil
	}
	// One recording: machines are made up, one for each rank.
	m.count = max(len(names), s.servers)
	for i, name := range names {
		m.worker[i] = i
		if digits, ok := strings.CutPrefix(name, "worker"); ok {
			if rank, err := strconv.Atoi(digits); err == nil && rank >= 0 && rank < maxServers {
				m.worker[i] = rank
				m.count = max(m.count, rank+1)
			}
		}
	}
	for rank := range m.server {
		m.server[rank] = rank
	}
	return m, nil
}
