// Command reasons writes what is made from reasons.txt: the C header, the Go
// list and the documentation of everything the programs count. go generate
// runs it in the folder of package bpf.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"strings"
)

// reason is one line of reasons.txt.
type reason struct{ name, class, text string }

func main() {
	log.SetFlags(0)
	if err := run("reasons.txt"); err != nil {
		log.Fatalf("reasons: %v", err)
	}
}

func run(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	list, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	code, err := format.Source(goList(list))
	if err != nil {
		return fmt.Errorf("formatting the Go list: %w", err)
	}
	for name, content := range map[string][]byte{
		"reasons.h": cHeader(list), "reason_list.go": code, "REASONS.md": table(list),
	} {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func parse(text []byte) ([]reason, error) {
	var list []reason
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		words := strings.SplitN(line, " ", 3)
		if len(words) < 3 {
			return nil, fmt.Errorf("line %d: want a name, a class and an explanation", n)
		}
		r := reason{words[0], words[1], words[2]}
		if r.class != "seen" && r.class != "ignored" && r.class != "lost" {
			return nil, fmt.Errorf("line %d: class %q is none of seen, ignored and lost", n, r.class)
		}
		list = append(list, r)
	}
	return list, lines.Err()
}

const made = "made by internal/reasons from reasons.txt; DO NOT EDIT."

func cHeader(list []reason) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "/* Code generated: %s */\n#pragma once\n\nenum reason {\n", made)
	for _, r := range list {
		fmt.Fprintf(&b, "\tR_%s,\n", strings.ToUpper(r.name))
	}
	b.WriteString("\tREASONS\n};\n")
	return b.Bytes()
}

func goList(list []reason) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// Code generated: %s\n\npackage bpf\n\n", made)
	b.WriteString("// What the programs count, as in reasons.txt.\nconst (\n")
	for i, r := range list {
		fmt.Fprintf(&b, "\t// %s: %s.\n\t%s Reason = %d\n", goName(r.name), r.text, goName(r.name), i)
	}
	b.WriteString(")\n\nvar reasonTable = [...]reasonText{\n")
	for _, r := range list {
		fmt.Fprintf(&b, "\t{%q, %s, %q},\n", r.name, "Class"+goName(r.class)[len("Reason"):], r.text)
	}
	b.WriteString("}\n")
	return b.Bytes()
}

// goName turns ring_full into ReasonRingFull.
func goName(name string) string {
	var b strings.Builder
	b.WriteString("Reason")
	for _, word := range strings.Split(name, "_") {
		if word == "tcp" || word == "zmtp" {
			b.WriteString(strings.ToUpper(word))
			continue
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

func table(list []reason) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!-- %s -->\n# What the capture programs count\n\n", made)
	b.WriteString("Each counter has a number of events and of bytes. `seen` is traffic that was looked at, ")
	b.WriteString("`ignored` traffic that is no PS-lite job's, `lost` what a job sent and the capture did not see whole.\n\n")
	b.WriteString("| counter | class | what it counts |\n| --- | --- | --- |\n")
	for _, r := range list {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.name, r.class, r.text)
	}
	return b.Bytes()
}
