// Command chartdoc writes the chart's README.md: a table of its values, with what values.yaml
// says of each in the comment above it and what values.schema.json lets it be. So a value is
// described in one place, where it is set, and people read it in the repository without helm.
//
// A value without a comment, one that the schema does not know and one that the schema knows
// and values.yaml has not are errors. With --check nothing is written, and a README.md that
// differs is an error too; that is how tests notice.
//
// main.go writes, values.go reads values.yaml beside the schema, schema.go puts a schema into
// words.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// main runs the command. Any error is exit code 1.
func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "chartdoc:", err)
		os.Exit(1)
	}
}

// run writes or checks README.md in the folder of --chart.
func run(args []string) error {
	flags := flag.NewFlagSet("chartdoc", flag.ContinueOnError)
	chart := flags.String("chart", "deploy/chart", "folder of the chart")
	check := flags.Bool("check", false, "write nothing; fail where README.md is not what would be written")
	if err := flags.Parse(args); err != nil {
		return err
	}
	text, err := readme(*chart)
	if err != nil {
		return err
	}
	path := filepath.Join(*chart, "README.md")
	if !*check {
		return os.WriteFile(path, text, 0o644)
	}
	// Compared byte by byte, so that the file in the repository is the one that the command
	// writes.
	if have, err := os.ReadFile(path); err != nil {
		return err
	} else if !bytes.Equal(have, text) {
		return fmt.Errorf("%s is not what values.yaml and values.schema.json give: go run ./deploy/chartdoc writes it", path)
	}
	return nil
}

// intro is the text above the tables.
const intro = `# Chart psidecar

<!-- Generated from values.yaml and values.schema.json by go run ./deploy/chartdoc. -->

The chart deploys agents and, if enabled, proxies as a DaemonSet, and planners as a Deployment. [Deploying](../../docs/deploying.md) describes installation, upgrade, removal and the purpose of each feature. ` + "`helm test RELEASE`" + ` checks the health of all components of a release.

Unknown values and values of a wrong type are rejected before anything is installed.
`

// readme returns the content of README.md, for the chart in a folder.
func readme(chart string) ([]byte, error) {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return nil, err
	}
	schema, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		return nil, err
	}
	sections, err := read(values, schema)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", chart, err)
	}
	var b bytes.Buffer
	b.WriteString(intro)
	for _, s := range sections {
		s.write(&b)
	}
	return b.Bytes(), nil
}
