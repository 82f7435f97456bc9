package jobs

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// commandRun is a ZMTP command that precedes a node table on its way from the proxy on the
// scheduler's host to the one on the node's host. Its data is the run's name. Processes neither
// send nor see it.
const commandRun = "PSRUN"

// maxSchedulers bounds the schedulers of this host that are remembered.
const maxSchedulers = 256

// maxRecord bounds the bytes read of a scheduler's file; nodes' addresses take up most of it.
const maxRecord = 1 << 20

// scheduler is the state of a scheduler of this host: the run that it began last, and the nodes
// that got its table.
//
// PS-lite has no name for a run, but all hosts must agree on one: keys, letters and stored plans
// are of a run, and a job that is started again at the same addresses begins with all keys at home.
// The rule is that a scheduler sends a node its table once in a run, except for recoveries, which
// say so. A node that gets a table again, or one with other nodes, is in another run.
//
// The state is kept in a file, a line of JSON and then a line for each node that got the table, so
// that another proxy of this host does not take the next run for this one. Jobs.schedulersMu guards
// it.
type scheduler struct {
	file   string
	record schedulerRecord
	told   map[int32]bool
	// unnamed is a run later than record's whose nodes get the table without a name, because the
	// name could not be written to disk; nil: there is none.
	unnamed *unnamedRun
}

// unnamedRun is a run whose nodes all get the table without a name. If some got one and others did
// not, their hosts would take it for two runs and wait for each other forever. It is kept in memory
// only.
type unnamedRun struct {
	digest uint64
	told   map[int32]bool
}

// errUnnamed is why a run has no name although one could be written by now.
var errUnnamed = errors.New("some of its nodes received the node table without a run name")

// schedulerRecord is the first line of a scheduler's file.
type schedulerRecord struct {
	Job    string   `json:"job"`
	Run    plan.Run `json:"run"`
	Digest uint64   `json:"digest"`
	Netns  uint64   `json:"netns,omitempty"`
	Nodes  []byte   `json:"nodes,omitempty"` // digests of their addresses, see [addressesOf]
}

// nameRun puts the run's name before a node table that leaves a scheduler of this host. The name is
// on disk before the table goes, so that a kill in between cannot give the same run two names.
func (c *requests) nameRun(m *pslite.Meta) {
	if !c.linked {
		return // the process itself would get it
	}
	var t pslite.Table
	t.Learn(m)
	job := jobName(&t)
	if job == "" {
		return // of a recovery, to nodes that have the rest of the table
	}
	if c.table != t.Digest() {
		c.run, c.table = "", t.Digest() // a table that is repeated is of the same run
		run, err := c.jobs.runOf(schedulerKey{job, c.scope.Netns}, &t, c.destination, recovers(m))
		if err != nil {
			c.jobs.log.Error("keys of a run will not move: its name cannot be saved; fix the state directory and restart the job", "job", job, "error", err)
			return
		}
		c.run = run
	}
	if c.run != "" {
		c.name = zmtp.AppendCommand(nil, commandRun, []byte(c.run))
	}
}

// recovers reports whether a node table is sent because a node came back.
func recovers(m *pslite.Meta) bool {
	return slices.ContainsFunc(m.Control.Nodes, func(n pslite.Node) bool { return n.IsRecovery })
}

// schedulerKey is a job and the network namespace of its scheduler. Only one process at a time can
// listen at the job's address in a namespace.
type schedulerKey struct {
	job   string
	netns uint64
}

// runOf returns the run of a table that a scheduler of this host sends to the node at an address:
// the scheduler's last run, or a new one. It is on disk when runOf returns. It returns no run for a
// recovery of an unknown one, and for a destination that is not in the table.
func (j *Jobs) runOf(k schedulerKey, t *pslite.Table, to netip.AddrPort, recovers bool) (plan.Run, error) {
	j.schedulersMu.Lock()
	defer j.schedulersMu.Unlock()
	id, ok := t.At(to)
	if !ok {
		return "", nil
	}
	s := j.schedulers[k]
	if s == nil {
		s = &scheduler{file: filepath.Join(j.opts.Dir, schedulerFile(k)), told: map[int32]bool{}}
		if err := s.readRecord(k.job); err != nil {
			j.log.Warn("the last run of a scheduler is unknown; the next one will be a new run", "job", k.job, "error", err)
		}
	}
	switch d := t.Digest(); {
	case recovers:
		// A run without a name stays without one.
		if s.record.Run == "" {
			return "", nil
		}
		j.schedulers[k] = s
		s.record.Nodes = appendAddress(s.record.Nodes[:min(len(s.record.Nodes), maxAddresses)], to)
		return s.record.Run, nil
	case s.unnamed != nil && s.unnamed.digest == d && !s.unnamed.told[id]:
		s.unnamed.told[id] = true
		return "", errUnnamed
	case s.record.Run == "" || s.record.Digest != d || s.told[id] || s.unnamed != nil:
		// A new run: the file is replaced before any node gets the name.
		next := scheduler{file: s.file, told: map[int32]bool{}}
		next.record = schedulerRecord{Job: k.job, Run: plan.NewRun(s.record.Run, time.Now(), d), Digest: d, Netns: k.netns, Nodes: addressesOf(t)}
		if err := next.replaceRecord(); err != nil {
			s.unnamed = &unnamedRun{d, map[int32]bool{id: true}}
			j.forgetUnnamed()
			j.schedulers[k] = s
			return "", err
		}
		j.forgetSchedulers()
		s = &next
		j.schedulers[k] = s
		j.log.Info("run started", "job", k.job, "run", s.record.Run)
	}
	j.schedulers[k] = s
	if err := s.noteNode(id); err != nil {
		// It has its name, as all others do. A proxy after this one must not mistake
		// the next run for this one because the node is missing from the record.
		j.log.Error("cannot save a run: it will be unknown once this proxy has exited; fix the state directory", "job", k.job, "run", s.record.Run, "error", errors.Join(err, os.Remove(s.file)))
		s.told[id] = true
	}
	return s.record.Run, nil
}

// forgetUnnamed forgets schedulers that have nothing on disk, while there are too many; the caller
// holds j.schedulersMu.
func (j *Jobs) forgetUnnamed() {
	for k, s := range j.schedulers {
		if len(j.schedulers) < maxSchedulers {
			return
		}
		if s.record.Run == "" {
			delete(j.schedulers, k)
		}
	}
}

// schedulerSuffix ends the names of schedulers' files.
const schedulerSuffix = ".run"

// schedulerFile returns the name of a scheduler's file: a digest, as a job's name has characters
// that paths cannot have.
func schedulerFile(k schedulerKey) string {
	sum := sha256.Sum256(fmt.Append(nil, k.job, " ", k.netns))
	return hex.EncodeToString(sum[:8]) + schedulerSuffix
}

// readRecord reads the file that another proxy has written. A file that does not exist is no error.
// job is the expected job, or empty for any.
func (s *scheduler) readRecord(job string) error {
	f, err := os.Open(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxRecord)
	var r schedulerRecord
	if !lines.Scan() {
		return errors.Join(fmt.Errorf("%s is empty", s.file), lines.Err())
	}
	if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
		return fmt.Errorf("%s: %w", s.file, err)
	}
	// The file's name is a digest, so another job's record can only be there by a collision,
	// or by hand.
	if job != "" && r.Job != job || !r.Run.Valid() {
		return fmt.Errorf("%s belongs to another job, or is damaged", s.file)
	}
	for lines.Scan() {
		id, err := strconv.ParseInt(lines.Text(), 10, 32)
		if err != nil { // cut off: that node did not get the table
			break
		}
		s.told[int32(id)] = true
	}
	s.record = r
	return lines.Err()
}

// replaceRecord writes the file of a new run, in the place of the previous run's.
func (s *scheduler) replaceRecord() error {
	text, err := json.Marshal(s.record)
	if err != nil {
		return fmt.Errorf("encoding a run: %w", err)
	}
	if err := os.WriteFile(s.file+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("keeping a run: %w", err)
	}
	if err := os.Rename(s.file+".new", s.file); err != nil {
		return fmt.Errorf("keeping a run: %w", err)
	}
	return nil
}

// noteNode appends a node that gets the table to the file.
func (s *scheduler) noteNode(id int32) error {
	if s.told[id] {
		return nil
	}
	f, err := os.OpenFile(s.file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("saving the nodes of a run: %w", err)
	}
	if _, err := fmt.Fprintln(f, id); err != nil {
		return errors.Join(fmt.Errorf("saving the nodes of a run: %w", err), f.Close())
	}
	s.told[id] = true
	return f.Close()
}

// forgetSchedulers removes the files of the schedulers that began a run the longest ago, beyond
// maxSchedulers; the caller holds j.schedulersMu.
func (j *Jobs) forgetSchedulers() {
	files, err := pathsLike(j.opts.Dir, "*"+schedulerSuffix)
	if err != nil || len(files) <= maxSchedulers {
		return
	}
	age := func(file string) time.Time {
		if info, err := os.Stat(file); err == nil {
			return info.ModTime()
		}
		return time.Time{}
	}
	slices.SortFunc(files, func(a, b string) int {
		if c := age(a).Compare(age(b)); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	for _, file := range files[:len(files)-maxSchedulers] {
		if err := os.Remove(file); err != nil {
			j.log.Warn("removing the state of an old scheduler", "file", file, "error", err)
		}
		for k, s := range j.schedulers {
			if s.file == file {
				delete(j.schedulers, k)
			}
		}
	}
}
