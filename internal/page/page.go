// Package page serves the state of an agent or a planner over HTTP: the web page (embedded,
// self-contained), the JSON API below /api/v1, health checks, metrics and, if wanted, profiles.
//
// [Handler] makes an http.Handler of a [State]. The types of the answers are in api.go and in
// the files named after them; their JSON is a stable interface, to which fields may be added.
// The page in dist is built from page/src and committed. Everything here only reads.
// A [Server] adds what every listener needs: a [Guard] against pages of other sites, and bounds on
// connections.
//
// # Forms
//
// [CompareForms] compares the ways to keep a job's parameters equal on all machines: parameter
// servers, servers with one sum of each host, all-reduce and all-gather. For each range of keys
// it computes what the busiest machine moves in a step.
//
// Its input is, by range of keys, how often each worker pushed them and how many steps the
// worker made. It returns alpha, the fraction of the range's values that a worker uses in a
// step (Parallax, Kim et al. 2019, section 2.2), and the bytes of each form by the paper's
// Table 3. It is pure arithmetic.
//
// # Grid
//
// A [Grid] holds accesses by worker and block of keys, the data of a heatmap. The agent counts
// into grids (package counts), reports carry them, and the planner adds those of several hosts
// in the blocks that all of them have.
//
// # Names
//
// A [NameMap] translates keys to the names that people use in training: the embedding table or
// layer of a range of keys, and the row in it. It is read from a YAML file that was
// written by hand or exported from a model.
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

// State is the data to show. Its methods may be called from any goroutine. Answers may share
// memory with the state and are not changed by this package.
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

// A Namer is a State that knows the names of jobs.
type Namer interface {
	// Scheduler returns the scheduler address of the job of that name, and any other text
	// unchanged.
	Scheduler(name string) string
}

// byName lets clients give a job by its name: it replaces the parameter by the scheduler's
// address before h sees it.
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

// ErrNoJob says that there is no job of the requested name. It becomes status 404.
var ErrNoJob = errors.New("no such job")

// ErrNoRange says that a state has sums over all time only. It becomes status 400.
var ErrNoRange = errors.New("the planner only has totals: omit from and to, or query a host's agent")

// Options of a handler. What is nil is not served, unless it says otherwise.
type Options struct {
	Metrics http.Handler  // serves /metrics
	Pprof   bool          // serve /debug/pprof/
	Health  *health.Loops // answers /healthz; nil: always healthy
	// Plan, of a planner, returns a job's plan, or ErrNoJob.
	Plan func(job string) (Plan, error)
	// Names are the names of keys; nil: they have none.
	Names *NameFile
	// Codecs, of a planner, returns its codec rules and trials for a job.
	Codecs func(job string) (Codecs, error)
	// Sums, of a planner, returns its rules about sums of a job's pushes.
	Sums func(job string) SumRules
	// Runs, of a planner, returns the runs of a job, given by its name or scheduler address;
	// without one, of all jobs.
	Runs func(job string) (Runs, error)
	// History returns the last hour of a job; with an empty name, of the host.
	History func(job string, q HistoryQuery) (History, error)
	// Open reads a recording and returns the names of its jobs. An error is about the file.
	Open func(name string, in io.Reader) ([]string, error)
}

//go:embed dist
var dist embed.FS

// Handler serves the state. It does not authenticate; see Server.
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
	// Unknown paths below /api/ are answered as the interface answers, in JSON.
	mux.HandleFunc("GET /api/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, badRequest{http.StatusNotFound, "not found: " + r.URL.Path})
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

// files serves the embedded files of the page. They load nothing from other hosts, and a
// Content-Security-Policy makes browsers enforce that.
func files() http.Handler {
	embedded, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // dist is embedded above
	}
	serve := http.FileServerFS(embedded)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// frame-ancestors keeps other sites from showing the page in a frame and stealing
		// clicks on it.
		w.Header().Set("Content-Security-Policy",
			"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache")
		serve.ServeHTTP(w, r)
	})
}

// server has the handlers of the API.
type server struct {
	state State
	names *NameFile                 // nil: keys have none
	sums  func(job string) SumRules // nil unless it is a planner
}

// ready answers /readyz.
func (s server) ready(w http.ResponseWriter, _ *http.Request) {
	if err := s.state.Ready(); err != nil {
		text(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	text(w, http.StatusOK, "ready")
}

// text answers with a line of text.
func text(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	if _, err := w.Write([]byte(s + "\n")); err != nil {
		slog.Debug("responding to a health check", "error", err)
	}
}

// badRequest is an error with an HTTP status of its own.
type badRequest struct {
	code int
	text string
}

// Error returns the text for the client.
func (e badRequest) Error() string { return e.text }

// answer makes a handler of a function whose result is encoded as JSON. Errors become a status
// and {"error": text}.
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

// fail answers with an error. Errors that are none of the client's become status 500.
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

// writeJSON encodes an answer before anything is sent, so that an encoding error still has a
// status.
func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(withLists(v))
	if err != nil {
		code, body = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be encoded"}`)
		slog.Error("encoding a response", "error", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	if _, err := w.Write(append(body, '\n')); err != nil {
		slog.Debug("sending a response", "error", err)
	}
}
