package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// outcome is the outcome of one mutant.
type outcome string

const (
	caught   outcome = "caught"
	hung     outcome = "caught, by the time limit" // a test that hangs says little
	survived outcome = "SURVIVED"
	broken   outcome = "BROKEN" // it cannot be planted, does not compile, or its tests fail anyway
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) //nolint:forbidigo // Here it begins.
	code := mutate(ctx, os.Stdout)
	stop()
	os.Exit(code)
}

// mutate plants what the command line says, and returns the exit code.
func mutate(ctx context.Context, out io.Writer) (code int) {
	only := flag.String("only", "", "plant only those whose name matches this regular expression")
	limit := flag.Duration("timeout", 4*time.Minute, "how long the tests of one mutant may take")
	list := flag.Bool("list", false, "print names and sentences, and end")
	verbose := flag.Bool("v", false, "print what go test printed")
	flag.Parse()
	pick, err := regexp.Compile(*only)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "mutate: -only:", err)
		return 2
	}
	all, err := load(filepath.Join("test", "mutate", "mutants"))
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "mutate: run it in the folder that has go.mod:", err)
		return 2
	}
	r := runner{limit: *limit, verbose: *verbose, out: out, green: map[string]error{}}
	counts := map[outcome]int{}
	for _, m := range all {
		if !pick.MatchString(m.name) || ctx.Err() != nil {
			continue
		}
		if *list {
			_, _ = fmt.Fprintf(out, "%-40s %s\n", m.name, m.says)
			continue
		}
		began := time.Now()
		what, detail := r.run(ctx, &m)
		if ctx.Err() != nil {
			break
		}
		counts[what]++
		_, _ = fmt.Fprintf(out, "%-26s %-40s %5.1fs  %s\n", what, m.name, time.Since(began).Seconds(), detail)
	}
	if *list {
		return 0
	}
	_, _ = fmt.Fprintf(out, "%d caught, %d of them by the time limit; %d survived, %d broken\n",
		counts[caught]+counts[hung], counts[hung], counts[survived], counts[broken])
	if ctx.Err() != nil || counts[survived]+counts[broken] > 0 || counts[caught]+counts[hung] == 0 {
		return 1
	}
	return 0
}

// runner runs tests over the tree in the current folder.
type runner struct {
	limit   time.Duration
	verbose bool
	out     io.Writer
	green   map[string]error // by the tests: why they fail without a bug; nil if they pass
}

// run plants one mutant and runs its tests. The detail is a line for people.
func (r *runner) run(ctx context.Context, m *mutant) (what outcome, detail string) {
	files, err := m.planted(".")
	if err != nil {
		return broken, err.Error()
	}
	if err := r.passes(ctx, m.test); err != nil {
		return broken, err.Error()
	}
	folder, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return broken, err.Error()
	}
	defer func() { _ = os.RemoveAll(folder) }()
	overlay, err := writeOverlay(folder, files)
	if err != nil {
		return broken, err.Error()
	}
	out, err := r.goTest(ctx, append([]string{"-overlay=" + overlay}, m.test...))
	return judge(out, err, m)
}

// judge says what a run of the tests with a bug in it shows.
func judge(out string, err error, m *mutant) (what outcome, detail string) {
	exit, isExit := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return survived, m.says
	case !isExit || exit.ExitCode() < 0:
		return broken, err.Error()
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return broken, "does not compile: " + firstLine(out, ".go:")
	case strings.Contains(out, "panic: test timed out"):
		return hung, ""
	}
	return caught, firstLine(out, "--- FAIL: ")
}

// passes runs tests without a bug, once.
func (r *runner) passes(ctx context.Context, test []string) error {
	key := strings.Join(test, " ")
	if err, known := r.green[key]; known {
		return err
	}
	out, err := r.goTest(ctx, test)
	switch {
	case err != nil:
		err = fmt.Errorf("go test %s fails without the bug: %s", key, firstLine(out, "FAIL"))
	case strings.Contains(out, "no tests to run"):
		err = fmt.Errorf("go test %s: there is no such test", key)
	}
	r.green[key] = err
	return err
}

// modules are packages that are modules of their own.
var modules = []string{"./test/browser", "./deploy"}

func (r *runner) goTest(ctx context.Context, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limit+2*time.Minute) // compiling included
	defer cancel()
	dir := ""
	if i := slices.IndexFunc(args, func(arg string) bool { return slices.Contains(modules, arg) }); i >= 0 {
		dir, args = args[i], slices.Replace(slices.Clone(args), i, i+1, ".")
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-vet=off", "-timeout=" + r.limit.String()}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if r.verbose {
		_, _ = fmt.Fprintf(r.out, "%s\n%s", strings.Join(cmd.Args, " "), out)
	}
	return string(out), err
}

// writeOverlay writes changed files into a folder, and what go test's -overlay wants.
func writeOverlay(folder string, files map[string]string) (string, error) {
	replace := map[string]string{}
	for name, text := range files {
		whole, err := filepath.Abs(name)
		if err != nil {
			return "", err
		}
		changed := filepath.Join(folder, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[whole] = changed
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(folder, "overlay.json")
	return name, os.WriteFile(name, data, 0o600)
}

// firstLine returns the first line that has a word in it.
func firstLine(out, word string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, word) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
