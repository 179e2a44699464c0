# The jobs that the process of Sidekiq and the cases share. What a job did stands in a list of the server.
require "sidekiq"

ADDRESS = "redis://#{ENV.fetch("EVENKEEL_HOST", "127.0.0.1")}:#{ENV.fetch("EVENKEEL_PORT", "6379")}/0"

# The times of a busy machine.
REDIS = { url: ADDRESS, network_timeout: 30, pool_timeout: 30 }
# This version speaks to its library of Redis in ways that the library will give up later.
Redis.silence_deprecations = true
Sidekiq.logger.level = Logger::WARN
Sidekiq.configure_client { |config| config.redis = REDIS }
Sidekiq.configure_server do |config|
  config.redis = REDIS
  config.options[:poll_interval_average] = 0.2
end

def done(list, what)
  Sidekiq.redis { |redis| redis.rpush("done:#{list}", what) }
end

class Note
  include Sidekiq::Job
  def perform(list, what)
    done(list, what)
  end
end

class Flaky
  include Sidekiq::Job
  sidekiq_options retry: 5
  sidekiq_retry_in { 60 }
  def perform(list, times)
    tries = Sidekiq.redis { |redis| redis.incr("tries:#{list}") }
    raise ArgumentError, "try #{tries}" if tries <= times
    done(list, tries)
  end
end

class Fatal
  include Sidekiq::Job
  sidekiq_options retry: 0
  def perform(list)
    raise "on purpose" unless Sidekiq.redis { |redis| redis.get("mended:#{list}") }
    done(list, "mended")
  end
end

# Holds until the list `go:...` has an element.
class Held
  include Sidekiq::Job
  def perform(list)
    done(list, "began")
    Sidekiq.redis { |redis| redis.brpop("go:#{list}", timeout: 60) }
    done(list, "ended")
  end
end
