package jobs

import (
	"fmt"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
)

// State describes a job's routing, as in the proxy's HTTP API. Field names in JSON are stable.
type State struct {
	Job        string   `json:"job"`
	Run        plan.Run `json:"run,omitempty"` // which of the job's runs
	Workers    []int32  `json:"workers"`
	Displaced  int      `json:"displaced_keys"`
	Ranges     int      `json:"displaced_ranges"`
	Guarded    bool     `json:"guarded"` // connections fail while there is no proxy
	Over       bool     `json:"over"`    // no connection on this host for two seconds
	Ready      bool     `json:"ready"`
	LostStore  string   `json:"lost_store,omitempty"` // message of a planner whose store does not know the owners of keys: what it waits for
	Joining    []string `json:"joining,omitempty"`    // hosts whose holds are missing
	Holds      int      `json:"holds"`
	Waiting    int      `json:"waiting_requests"`
	UnderWay   []string `json:"under_way,omitempty"` // requests in flight, at most 8 of them
	Handler    string   `json:"handler"`
	Plain      uint64   `json:"plain_requests"`
	Split      uint64   `json:"split_requests"`
	Parts      uint64   `json:"parts"`
	Joint      uint64   `json:"gathered_requests"`     // of Split: gathered with others of their timestamp
	Rerouted   uint64   `json:"rerouted_requests"`     // requests that went whole to another server
	Ungathered uint64   `json:"ungathered_timestamps"` // timestamps whose slices did not all come in time
	Held       uint64   `json:"held_requests"`
	Repeated   uint64   `json:"repeated_requests"`
	Moved      uint64   `json:"moved_keys"`
	MovedBytes uint64   `json:"moved_bytes"`
	Refused    uint64   `json:"refused_keys"`
	Strangers  uint64   `json:"letters_of_other_runs"` // received and dropped
	Lost       uint64   `json:"lost_messages"`         // messages of the router that were dropped; the metrics have the reasons
	Dropped    uint64   `json:"dropped_requests"`      // with PS_RESEND: too many are split and in flight; they come again
	Unnoted    uint64   `json:"unnoted_requests"`      // plain ones that are not followed, so that no key moves: too many are in flight
	Kept       int      `json:"kept_messages"`         // messages that only this proxy has, and that survive a kill
	Unkept     uint64   `json:"unkept_messages"`       // messages that do not survive one, for want of room in the state folder
	// Trouble is what keeps the job from surviving a kill of the proxy, or why its requests are
	// refused; empty: neither.
	Trouble    string   `json:"trouble,omitempty"`
	HeldMicros []uint64 `json:"held_micros,omitempty"` // of the last batches that this host moved: how long their keys were held
	// PhaseMicros has the median times of those batches' phases: until quiet, the old owner, the
	// new one, the check, the planner's disk.
	PhaseMicros map[string]uint64 `json:"phase_micros,omitempty"`
	InParts     *PartsState       `json:"in_parts,omitempty"` // nil: no value is in parts or may be
	// Stays is why keys stay where they are because of how the job uses them (apps, slicer, commands), StaysWhy says so in
	// words; empty: no such reason is known here.
	Stays    string `json:"stays,omitempty"`
	StaysWhy string `json:"stays_why,omitempty"`
	// Abandoned counts requests whose answers nobody waits for, by reason: connection_ended, the
	// worker ended its connection to the server; worker_restarted.
	Abandoned map[string]uint64 `json:"abandoned_requests,omitempty"`
}

// FolderState describes the state folder.
type FolderState struct {
	Path        string   `json:"path"`
	LedgerBytes int64    `json:"ledger_bytes"`
	LedgerLimit int64    `json:"ledger_limit"`
	Damaged     uint64   `json:"damaged"`        // files and folders found damaged since the start
	Lost        []string `json:"lost,omitempty"` // folders of jobs whose names are not known, and why
	// StrayAnswers counts answers to requests of proxies that came for workers of unknown jobs, and
	// were dropped.
	StrayAnswers uint64 `json:"stray_answers"`
}

// Folder returns the state of the state folder.
func (j *Jobs) Folder() FolderState {
	f := j.folder
	s := FolderState{Path: f.dir, LedgerBytes: f.space.Used(), LedgerLimit: f.space.Limit, Damaged: f.damaged.Load(), StrayAnswers: j.strayAnswers.Load()}
	for _, l := range f.missing() {
		s.Lost = append(s.Lost, fmt.Sprintf("%s: %v", l.path, l.err))
	}
	return s
}

// States returns the states of all jobs, by name.
func (j *Jobs) States() []State {
	states := []State{}
	for _, job := range j.allJobs() {
		states = append(states, job.state())
	}
	slices.SortFunc(states, func(a, b State) int {
		if a.Job < b.Job {
			return -1
		}
		return 1
	})
	return states
}

// state returns the job's state.
func (x *job) state() State {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := State{Job: x.name, Run: x.run, Strangers: x.strangers, LostStore: x.lostStore, Guarded: x.guarded(), Over: x.over(time.Now()), Workers: []int32{}, Moved: x.moved, MovedBytes: x.movedBytes, Refused: x.refusedKeys, Lost: x.lost, Handler: x.handler.String(), HeldMicros: slices.Clone(x.held.whole), PhaseMicros: x.held.medians()}
	if err := x.keptTrouble(); err != nil {
		s.Trouble = err.Error()
	}
	if x.site == nil {
		return s
	}
	for _, l := range x.ledgers {
		s.Kept += l.Whole()
		s.Unkept += l.Lost()
	}
	s.Workers = append(s.Workers, x.router.Workers()...)
	s.Displaced, s.Ranges = x.router.Table().Displaced()
	s.Ready, s.Joining, s.Holds = x.router.Ready(), x.site.Joining(), len(x.router.Holds())
	s.Waiting, _ = x.router.Waiting()
	s.UnderWay = x.router.UnderWay()
	s.UnderWay = s.UnderWay[:min(len(s.UnderWay), 8)]
	c := x.router.Counts()
	s.Plain, s.Split, s.Parts, s.Held, s.Repeated = c.Plain, c.Split, c.Parts, c.Held, c.Repeated
	s.Joint, s.Rerouted, s.Ungathered, s.Dropped, s.Unnoted = c.Joint, c.Rerouted, c.Ungathered, c.Dropped, c.Unnoted
	if c.Ended+c.Restarted > 0 {
		s.Abandoned = map[string]uint64{"connection_ended": c.Ended, "worker_restarted": c.Restarted}
	}
	s.InParts = x.partsState()
	if err := x.unfit(); err != nil {
		s.Stays, s.StaysWhy = staysFor(err), err.Error()
	}
	return s
}

// Placed reports whether a placement file gives the owners of keys from the first request on.
func (j *Jobs) Placed() bool { return j.opts.Placement != nil }

// Moves reports whether plans of a planner are carried out.
func (j *Jobs) Moves() bool { return j.opts.Planner != "" }
