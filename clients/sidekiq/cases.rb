# A real process of Sidekiq does real jobs over the server: queues, schedules, retries, the dead, its API, its end.
require_relative "jobs"
require "rbconfig"
require "sidekiq/api"
require "sidekiq/fetch"
require "sidekiq/scheduled"

PATIENCE_S = 40
CASES = []
$worker = nil

def case_of(name, &body)
  CASES << [name, body]
end

def same(got, want)
  raise "got #{got.inspect}, want #{want.inspect}" unless got == want
end

def redis(&block)
  Sidekiq.redis(&block)
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def until_so(what)
  deadline = now + PATIENCE_S
  until (found = yield)
    raise "it does not come about: #{what}" if now > deadline
    sleep 0.02
  end
  found
end

def did(list)
  redis { |one| one.lrange("done:#{list}", 0, -1) }
end

# The queues `kept` and `held` are not served by the process.
def kept(list, what = "x")
  Sidekiq::Client.push("class" => Note, "args" => [list, what], "queue" => "kept")
end

case_of("jobs are done, each once") do
  100.times { |n| Note.perform_async("once", n) }
  until_so("100 are done") { did("once").size >= 100 }
  same(did("once").map(&:to_i).sort, (0...100).to_a)
end

case_of("many jobs pushed at once") do
  ids = Sidekiq::Client.push_bulk("class" => Note, "args" => (0...500).map { |n| ["bulk", n] }, "queue" => "low")
  same(ids.uniq.size, 500)
  until_so("500 are done") { did("bulk").size >= 500 }
  same(did("bulk").map(&:to_i).sort, (0...500).to_a)
end

case_of("queues in their order, and the oldest job first") do
  first, second = kept("order"), kept("order")
  urgent = Sidekiq::Client.push("class" => Note, "args" => ["order", "x"], "queue" => "held")
  fetch = Sidekiq::BasicFetch.new(queues: %w[held kept], strict: true)
  work = Array.new(3) { fetch.retrieve_work }
  same(work.map(&:queue_name), %w[held kept kept])
  same(work.map { |one| JSON.parse(one.job)["jid"] }, [urgent, first, second])
  began = now
  same(fetch.retrieve_work, nil)
  raise "no wait for a job" if now - began < 1.5
  work[1].requeue
  same(JSON.parse(fetch.retrieve_work.job)["jid"], first)
end

case_of("a fetch that waits gets the job that comes") do
  late = Thread.new { sleep 0.3; kept("late") }
  fetch = Sidekiq::BasicFetch.new(queues: %w[held kept], strict: true)
  work = until_so("a job comes") { fetch.retrieve_work }
  same(JSON.parse(work.job)["jid"], late.value)
end

case_of("a queue: its jobs over several pages, its age, one job less, none") do
  ids = Array.new(120) { |n| kept("pages", n) }
  queue = Sidekiq::Queue.new("kept")
  same(queue.size, 120)
  same(queue.map(&:jid), ids.reverse)
  raise "#{queue.latency} s" unless queue.latency.between?(0, 60)
  same(queue.find_job(ids[70]).args, ["pages", 70])
  same(queue.find_job(ids[70]).delete, true)
  same(queue.find_job(ids[70]), nil)
  same(Sidekiq::Queue.all.map(&:name).include?("kept"), true)
  queue.clear
  same([queue.size, Sidekiq::Queue.all.map(&:name).include?("kept")], [0, false])
end

case_of("a job at its time") do
  began = Time.now.to_f
  id = Note.perform_in(600, "later", "x")
  entry = Sidekiq::ScheduledSet.new.find_job(id)
  raise "at #{entry.score - began}" unless (entry.score - began).between?(599, 660)
  due = Time.now.to_f + 0.8
  entry.reschedule(due)
  until_so("it is done") { did("later") == ["x"] }
  raise "too early" if Time.now.to_f < due
  same(Sidekiq::ScheduledSet.new.find_job(id), nil)
end

case_of("schedules: found, moved, removed, done at once") do
  ids = Array.new(60) { |n| Note.perform_in(10_000 + n, "plan", n) }
  set = Sidekiq::ScheduledSet.new
  same(set.size, 60)
  same(set.sort_by(&:score).map(&:jid), ids)
  same(set.scan("*#{ids[7]}*").map(&:jid), [ids[7]])
  set.find_job(ids[7]).reschedule(Time.now + 90_000)
  same(set.max_by(&:score).jid, ids[7])
  same(set.find_job(ids[0]).delete, true)
  same(set.fetch(set.map(&:score).min).map(&:jid), [ids[1]])
  set.find_job(ids[1]).add_to_queue
  until_so("it is done") { did("plan") == ["1"] }
  same(set.size, 58)
  set.clear
  same(set.size, 0)
end

case_of("one scheduled job, two processes that look: done once") do
  200.times { |n| Sidekiq::Client.push("class" => Note, "args" => ["twice", n], "at" => Time.now.to_f + 0.5) }
  Array.new(3) { Thread.new { until_so("none is left") { Sidekiq::Scheduled::Enq.new.enqueue_jobs; Sidekiq::ScheduledSet.new.size == 0 } } }.each(&:join)
  until_so("200 are done") { did("twice").size >= 200 }
  same(did("twice").map(&:to_i).sort, (0...200).to_a)
end

case_of("the script of schedules, forgotten by the server") do
  Note.perform_in(0.1, "script", 1)
  until_so("one is done") { did("script").size == 1 }
  same(redis { |one| one.script(:flush) }, "OK")
  Note.perform_in(0.1, "script", 2)
  until_so("two are done") { did("script") == %w[1 2] }
end

case_of("a failing job is tried again") do
  id = Flaky.perform_async("flaky", 2)
  entry = until_so("it waits for its next try") { Sidekiq::RetrySet.new.find_job(id) }
  same([entry["error_class"], entry["error_message"], entry["retry_count"]], ["ArgumentError", "try 1", 0])
  # A next try is due in a minute, so each is moved to now, and only once: ZINCRBY of an entry that the process has
  # taken in between makes it anew, and the job would be done twice.
  moved = []
  until_so("it is done") do
    entry = Sidekiq::RetrySet.new.find_job(id)
    if entry && !moved.include?(entry["retry_count"])
      moved << entry["retry_count"]
      entry.reschedule(Time.now)
    end
    did("flaky") == ["3"]
  end
  same(Sidekiq::RetrySet.new.find_job(id), nil)
end

case_of("a job that died, and its life after") do
  id = Fatal.perform_async("fatal")
  entry = until_so("it is dead") { Sidekiq::DeadSet.new.find_job(id) }
  same([entry["error_message"], entry.klass], ["on purpose", "Fatal"])
  redis { |one| one.set("mended:fatal", 1) }
  entry.retry
  until_so("it is done") { did("fatal") == ["mended"] }
  same(Sidekiq::DeadSet.new.size, 0)
end

case_of("figures: done, failed, waiting") do
  3.times { kept("figures") }
  stats = until_so("all are counted, in sum and by day") do
    by_day = Sidekiq::Stats::History.new(2)
    stats = Sidekiq::Stats.new
    counts = [by_day.processed.values.sum, by_day.failed.values.sum]
    stats if stats.processed >= 805 && stats.failed >= 2 && counts == [stats.processed, stats.failed]
  end
  same([stats.queues["kept"], stats.scheduled_size, stats.retry_size, stats.processes_size], [3, 0, 0, 1])
  raise "these figures never end" unless redis { |one| one.ttl("stat:processed:#{Time.now.utc.strftime("%Y-%m-%d")}") } > 1_000_000
  Sidekiq::Queue.new("kept").clear
end

case_of("the process tells what it is and does; its end gives back what it holds") do
  id = Held.perform_async("end")
  until_so("the job is seen") { Sidekiq::WorkSet.new.any? { |_, _, work| work["payload"]["jid"] == id } }
  process = Sidekiq::ProcessSet.new.first
  same([process["pid"], process["concurrency"], process.queues.sort, process.stopping?], [$worker, 5, %w[default low], false])
  raise "#{redis { |one| one.ttl(process.identity) }} s" unless redis { |one| one.ttl(process.identity) }.between?(1, 60)
  process.stop!
  deadline = now + PATIENCE_S
  sleep 0.05 until (ended = Process.wait2($worker, Process::WNOHANG)) || now > deadline
  raise "it does not end" unless ended
  $worker = nil
  same(ended[1].exitstatus, 0)
  same(did("end"), ["began"])
  same(Sidekiq::Queue.new("default").map(&:jid), [id])
  same([Sidekiq::ProcessSet.new.size, Sidekiq::WorkSet.new.size], [0, 0])
end

def start_worker
  # The program as `sidekiq` starts it, whatever the PATH holds.
  program = "require 'sidekiq/cli'; cli = Sidekiq::CLI.instance; cli.parse; cli.run"
  # Its end waits 4 seconds for jobs, longer than the 2 that an idle thread waits for one: none takes what is given back.
  options = ["-r", File.join(__dir__, "jobs.rb"), "-c", "5", "-t", "4", "-q", "default", "-q", "low"]
  $worker = Process.spawn(RbConfig.ruby, "-e", program, "--", *options, chdir: __dir__)
end

def main
  $stdout.sync = true
  redis(&:flushall)
  start_worker
  failed = 0
  CASES.each do |name, body|
    next if ARGV[0] && !name.include?(ARGV[0])
    [Sidekiq::ScheduledSet.new, Sidekiq::Queue.new("kept"), Sidekiq::Queue.new("held")].each(&:clear)
    body.call
    puts "ok #{name}"
  rescue => e
    failed += 1
    puts "not ok #{name}: #{e.class}: #{e.message}", e.backtrace.first(5)
  end
  failed == 0 ? 0 : 1
end

# The process of Sidekiq ends with the cases, however these end.
Signal.trap("TERM") { exit(1) }
at_exit do
  if $worker
    Process.kill("TERM", $worker)
    Process.wait($worker)
  end
end
exit(main)
