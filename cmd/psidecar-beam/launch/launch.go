// Package launch runs a pipeline: on an engine with a job service, or on Prism,
// the engine in Beam's Go SDK, with worker processes of this host.
package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/runtime/graphx"
	pipepb "github.com/apache/beam/sdks/v2/go/pkg/beam/model/pipeline_v1"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/options/jobopts"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/runners/prism"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/runners/universal/runnerlib"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/cmd/psidecar-beam/pipeline"
)

// OnPrism runs a pipeline on a Prism of its own, whose lanes go to the worker
// pools at the addresses, one each. Prism starts one worker for each
// environment of a pipeline, so each lane gets an environment.
func OnPrism(ctx context.Context, p *beam.Pipeline, pools []string) error {
	edges, _, err := p.Build()
	if err != nil {
		return fmt.Errorf("building the pipeline: %w", err)
	}
	var envs []*pipepb.Environment
	for _, pool := range pools {
		env, err := graphx.CreateEnvironment(ctx, graphx.URNEnvExternal, func(context.Context) string { return pool })
		if err != nil {
			return fmt.Errorf("describing a worker: %w", err)
		}
		envs = append(envs, env)
	}
	job, err := graphx.Marshal(edges, &graphx.Options{Environment: envs[0]})
	if err != nil {
		return fmt.Errorf("building the pipeline: %w", err)
	}
	divide(job, envs)
	address, err := startPrism(ctx)
	if err != nil {
		return err
	}
	// The SDK hands the engine a program for workers to start, which ours,
	// running already, do not.
	program, err := os.CreateTemp("", "psidecar-beam-*")
	if err != nil {
		return fmt.Errorf("making a temporary file: %w", err)
	}
	defer os.Remove(program.Name())
	defer program.Close()
	_, err = runnerlib.Execute(ctx, job, address, &runnerlib.JobOptions{
		Name: jobopts.GetJobName(), Worker: program.Name(),
		// A bundle that is split goes on twice at once in its worker, with twice
		// the memory.
		Experiments: []string{"prism_disable_sdf_split"},
	}, false)
	return plain(err)
}

// divide gives the transforms of each lane but the first an environment.
func divide(job *pipepb.Pipeline, envs []*pipepb.Environment) {
	c := job.GetComponents()
	var first string
	for id := range c.GetEnvironments() {
		first = id
	}
	ids := []string{first}
	for lane, env := range envs[1:] {
		id := fmt.Sprintf("%s-lane-%d", first, lane+1)
		env = proto.CloneOf(env)
		env.Dependencies = nil // the workers are there
		c.Environments[id] = env
		ids = append(ids, id)
	}
	for _, t := range c.GetTransforms() {
		if lane := laneOf(t.GetUniqueName()); lane > 0 && lane < len(ids) && t.GetEnvironmentId() == first {
			t.EnvironmentId = ids[lane]
		}
	}
}

// laneOf returns the lane in a transform's name, -1 for none.
func laneOf(name string) int {
	for _, part := range strings.Split(name, "/") {
		if digits, ok := strings.CutPrefix(part, pipeline.LaneScope); ok {
			if lane, err := strconv.Atoi(digits); err == nil {
				return lane
			}
		}
	}
	return -1
}

// startPrism starts Prism's job service on a port that was free.
func startPrism(ctx context.Context) (address string, err error) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	if _, err := prism.CreateJobServer(ctx, prism.Options{Port: port}); err != nil {
		return "", fmt.Errorf("starting Prism: %w", err)
	}
	return fmt.Sprintf("localhost:%d", port), nil
}

// OnEngine runs a pipeline on the engine that Beam's flags name.
func OnEngine(ctx context.Context, p *beam.Pipeline, runner string) error {
	_, err := beam.Run(ctx, runner, p)
	return plain(err)
}

// cause finds the error of one of our functions in what Beam makes of it, a chain
// of who called whom.
var cause = regexp.MustCompile(`DoFn\[[^\n]*\] failed:\n([^\n]+)`)

// plain returns the error of our function, where there is one.
func plain(err error) error {
	if err == nil {
		return nil
	}
	if found := cause.FindStringSubmatch(err.Error()); found != nil {
		return errors.New(found[1])
	}
	return err
}
