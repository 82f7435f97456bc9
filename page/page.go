// Package page serves what an agent, or a planner, knows over HTTP: the page
// (embedded, self-contained), the JSON interface below /api/v1, health checks,
// metrics and, where wanted, profiles.
//
// In comes a [State]; out goes an http.Handler. The types of the answers are in
// api.go; the page in dist is built from page/ and committed.
//
// # Forms
//
// [CompareForms] compares the ways to keep a job's parameters equal on all machines:
// parameter servers, servers that get one sum of each host, all-reduce and all-gather.
// For each range of keys it computes what the busiest machine moves in a step.
//
// It takes, by range of keys, how often each worker pushed them and how many steps it
// made, and returns alpha, the share of the range's values that a worker uses in a
// step (Parallax, Kim and others 2019, section 2.2), and bytes by the paper's Table 3.
// It is pure arithmetic.
//
// # Grid
//
// A [Grid] holds accesses by worker and block of keys, the data of a heatmap. The
// agent counts into grids (package counts), reports carry them, and the planner adds
// those of several hosts in the blocks that all of them have.
//
// # Names
//
// A [NameMap] translates keys to the names that people who train use: the embedding
// table or layer of a range of keys, and the row within it. It is read from a YAML or
// CSV file that somebody wrote or exported from a model.
package page

import (
	"embed"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/psidecar/psidecar/internal/health"
)

// State is what there is to show. Its methods may be called from any
// goroutine.
type State interface {
	Jobs() []Job
	Heatmap(job string, q HeatmapQuery) (Heatmap, error)
	Traffic(job string, r Range) (Traffic, error)
	Keys(job string, n int) (Keys, error)
	Servers(job string, r Range) (Servers, error)
	Agent() Agent
	// Ready returns why requests cannot be answered sensibly yet, or nil.
	Ready() error
}

// A Namer is a State that knows what jobs are called.
type Namer interface {
	// Scheduler returns the address of the scheduler of the job of that name, and any
	// other text as it is.
	Scheduler(name string) string
}

// byName has jobs asked for by what they are called too.
func byName(n Namer, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if name := query.Get("job"); name != "" && strings.HasPrefix(r.URL.Path, "/api/") {
			if scheduler := n.Scheduler(name); scheduler != name {
				query.Set("job", scheduler)
				r = r.Clone(r.Context())
				r.URL.RawQuery = query.Encode()
			}
		}
		h.ServeHTTP(w, r)
	})
}

// ErrNoJob says that there is no job of the name asked for.
var ErrNoJob = errors.New("no such job")

// ErrNoRange says that only sums over all time are known.
var ErrNoRange = errors.New("the planner knows sums over all time only: leave out from and to, or ask a host's agent")

// Options of a handler.
type Options struct {
	Metrics http.Handler  // serves /metrics
	Pprof   bool          // serve /debug/pprof/
	Health  *health.Loops // answers /healthz; nil: all is well always
	// Plan, of a planner, returns a job's plan; ErrNoJob where it has none.
	Plan func(job string) (Plan, error)
	// Names is what keys are called; nil: they have no names.
	Names *NameFile
	// Codecs, of a planner, returns what it has on the values of a job.
	Codecs func(job string) (Codecs, error)
	// Sums, of a planner, returns its rules on sums of a job's pushes.
	Sums func(job string) SumRules
	// Runs, of a planner, returns the runs of a job, by its name or its scheduler's
	// address; of all jobs where none is named.
	Runs func(job string) (Runs, error)
	// History returns how a job went over the last hour; with the empty name what
	// concerns the host alone.
	History func(job string, q HistoryQuery) (History, error)
	// Open, where recordings can be opened, reads one and returns what its jobs are
	// called; what it has against the file is an error.
	Open func(name string, in io.Reader) ([]string, error)
}

//go:embed dist
var dist embed.FS

// Handler serves the state.
func Handler(state State, opts Options) http.Handler {
	mux := http.NewServeMux()
	s := server{state, opts.Names, opts.Sums}
	mux.Handle("GET /healthz", opts.Health)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /api/v1/jobs", answer(s.jobs))
	mux.HandleFunc("GET /api/v1/heatmap", answer(s.heatmap))
	mux.HandleFunc("GET /api/v1/traffic", answer(s.traffic))
	mux.HandleFunc("GET /api/v1/keys", answer(s.keys))
	mux.HandleFunc("GET /api/v1/servers", answer(s.servers))
	mux.HandleFunc("GET /api/v1/alpha", answer(s.alpha))
	mux.HandleFunc("GET /api/v1/agent", answer(s.agent))
	mux.HandleFunc("GET /api/v1/names", answer(s.namesOf))
	if opts.Plan != nil {
		mux.HandleFunc("GET /api/v1/plan", planOf(called(opts.Plan, opts.Names)))
	}
	if opts.Codecs != nil {
		mux.HandleFunc("GET /api/v1/codecs", codecsOf(opts.Codecs))
	}
	if opts.Runs != nil {
		mux.HandleFunc("GET /api/v1/runs", answer(func(r *http.Request) (Runs, error) { return opts.Runs(r.URL.Query().Get("job")) }))
	}
	if opts.History != nil {
		mux.HandleFunc("GET /api/v1/history", s.historyOf(opts.History))
	}
	if opts.Open != nil {
		mux.HandleFunc("POST "+recordingsPath, s.readRecording(opts.Open))
	}
	mux.HandleFunc("GET /api/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, badRequest{http.StatusNotFound, "nothing is served at " + r.URL.Path})
	})
	if opts.Metrics != nil {
		mux.Handle("GET /metrics", opts.Metrics)
	}
	if opts.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	mux.Handle("GET /", files())
	if n, ok := state.(Namer); ok {
		return byName(n, mux)
	}
	return mux
}

// files serves the embedded files of the page. They load nothing from other hosts, and
// a Content-Security-Policy has the browser enforce that.
func files() http.Handler {
	embedded, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // dist is embedded above
	}
	serve := http.FileServerFS(embedded)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy",
			"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache")
		serve.ServeHTTP(w, r)
	})
}

type server struct {
	state State
	names *NameFile                 // nil: keys have none
	sums  func(job string) SumRules // nil: not a planner\'s
}

func (s server) ready(w http.ResponseWriter, _ *http.Request) {
	if err := s.state.Ready(); err != nil {
		text(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	text(w, http.StatusOK, "ready")
}

func text(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	if _, err := w.Write([]byte(s + "\n")); err != nil {
		slog.Debug("answering a check", "error", err)
	}
}

// badRequest is an error with its HTTP status.
type badRequest struct {
	code int
	text string
}

func (e badRequest) Error() string { return e.text }

// answer makes a handler of a function that returns what to encode as JSON.
func answer[T any](f func(*http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			fail(w, err)
			return
		}
		writeJSON(w, http.StatusOK, v)
	}
}

func fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var bad badRequest
	switch {
	case errors.As(err, &bad):
		code = bad.code
	case errors.Is(err, ErrNoRange):
		code = http.StatusBadRequest
	case errors.Is(err, ErrNoJob):
		code = http.StatusNotFound
	}
	writeJSON(w, code, struct {
		Error string `json:"error"`
	}{err.Error()})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(withLists(v))
	if err != nil {
		code, body = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be encoded"}`)
		slog.Error("encoding an answer", "error", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	if _, err := w.Write(append(body, '\n')); err != nil {
		slog.Debug("sending an answer", "error", err)
	}
}
